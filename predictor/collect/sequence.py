"""Architectures that read, listen or recommend, of plain torch.nn.

Tokens are (N, S) integers, sounds (N, 80, S), points (N, 3, S); sizes are arguments.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention, spelled out in products and a softmax; `causal` looks back only."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix (N, S, width) along S."""
        n, s, width = x.shape
        q, k, v = self.into(x).view(n, s, 3, self.heads, width // self.heads).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        if self.causal:
            later = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -1e4)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, s, width))


class Block(nn.Module):
    """A transformer's layer, norms first."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, wide: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = Attention(width, heads, causal=causal)
        self.feed = nn.Sequential(
            nn.Linear(width, wide * width), nn.GELU(), nn.Linear(wide * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Mix, then feed forward."""
        x = x + self.mix(self.first(x))
        return x + self.feed(self.second(x))


class Language(nn.Module):
    """Embeds tokens, runs `layers` over (N, S, width), predicts a token at each place."""

    def __init__(self, layers: nn.Module, width: int, vocabulary: int, outputs: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = layers
        self.out = nn.Linear(width, outputs or vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (N, S, outputs)."""
        return self.out(self.layers(self.embed(tokens)))


def transformer(
    width: int = 512, depth: int = 6, heads: int = 8, *, vocabulary: int = 30522,
    causal: bool = False, outputs: int = 0, wide: int = 4,
) -> nn.Module:  # fmt: skip
    """Return an encoder (BERT's kind) or, causal, a decoder (GPT's kind)."""
    blocks = [Block(width, heads, causal=causal, wide=wide) for _ in range(depth)]
    return Language(nn.Sequential(*blocks, nn.LayerNorm(width)), width, vocabulary, outputs)


class Recurrent(nn.Module):
    """A recurrent network whose state is forgotten."""

    def __init__(
        self, kind: str, inputs: int, width: int, depth: int, *, both: bool = False
    ) -> None:
        super().__init__()
        cell = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind]
        self.cell = cell(inputs, width, depth, batch_first=True, bidirectional=both)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, S, width), or twice that wide."""
        return self.cell(x)[0]


def recurrent(
    kind: str = "lstm", width: int = 650, depth: int = 2, *, vocabulary: int = 10000,
    both: bool = False, outputs: int = 0,
) -> nn.Module:  # fmt: skip
    """Return a language model or, with `both` directions and `outputs`, a tagger."""
    inner = width // 2 if both else width
    cell = Recurrent(kind, width, inner, depth, both=both)
    return Language(cell, width, vocabulary, outputs)


class Speech(nn.Module):
    """DeepSpeech 2's kind: convolutions over a spectrogram, then recurrent layers."""

    def __init__(self, width: int = 512, depth: int = 3, kind: str = "gru") -> None:
        super().__init__()
        self.listen = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.layers = Recurrent(kind, 32 * 20, width, depth, both=True)
        self.out = nn.Linear(2 * width, 29)

    def forward(self, sound: Tensor) -> Tensor:
        """Return (N, S / 2, letters)."""
        x = self.listen(sound.unsqueeze(1))
        return self.out(self.layers(x.flatten(1, 2).transpose(1, 2)))


class Waves(nn.Module):
    """A temporal convolutional network (WaveNet's kind): dilated, gated, residual."""

    def __init__(self, width: int = 128, depth: int = 10, outputs: int = 256) -> None:
        super().__init__()
        self.into = nn.Conv1d(80, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2 ** (d % 8), dilation=2 ** (d % 8))
            for d in range(depth)
        )
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.out = nn.Conv1d(width, outputs, 1)

    def forward(self, sound: Tensor) -> Tensor:
        """Return (N, outputs, S)."""
        x = self.into(sound)
        for gate, mix in zip(self.gates, self.mix, strict=True):
            a, b = gate(x).chunk(2, 1)
            x = x + mix(a.tanh() * b.sigmoid())
        return self.out(x)


class Conformer(nn.Module):
    """Attention and depthwise convolution over a sound by turns."""

    def __init__(self, width: int = 256, depth: int = 6, heads: int = 4) -> None:
        super().__init__()
        self.into = nn.Conv1d(80, width, 3, 2, 1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.waves = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, 2 * width, 1), nn.GLU(1),
                nn.Conv1d(width, width, 15, padding=7, groups=width), nn.BatchNorm1d(width),
                nn.SiLU(), nn.Conv1d(width, width, 1),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.out = nn.Linear(width, 1000)

    def forward(self, sound: Tensor) -> Tensor:
        """Return (N, S / 2, tokens)."""
        x = self.into(sound).transpose(1, 2)
        for block, wave in zip(self.blocks, self.waves, strict=True):
            x = block(x)
            x = x + wave(x.transpose(1, 2)).transpose(1, 2)
        return self.out(x)


class TextConvolutions(nn.Module):
    """TextCNN: convolutions of several lengths, the strongest answer of each."""

    def __init__(self, width: int = 300, filters: int = 256, vocabulary: int = 30000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.ways = nn.ModuleList(nn.Conv1d(width, filters, k, padding=k // 2) for k in (3, 4, 5))
        self.out = nn.Linear(3 * filters, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (N, classes)."""
        x = self.embed(tokens).transpose(1, 2)
        return self.out(torch.cat([way(x).relu().amax(2) for way in self.ways], 1))


class Translation(nn.Module):
    """An encoder and a decoder with attention between them; the source is its own target."""

    def __init__(self, width: int = 512, depth: int = 6, heads: int = 8, words: int = 9500) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.read = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.own = nn.ModuleList(Block(width, heads, causal=True) for _ in range(depth))
        self.across = nn.ModuleList(Across(width, heads) for _ in range(depth))
        self.out = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (N, S, words)."""
        x = self.embed(tokens)
        source = self.read(x)
        for own, across in zip(self.own, self.across, strict=True):
            x = across(own(x), source)
        return self.out(x)


class Across(nn.Module):
    """Attention from one sequence to another."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.pair = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """Mix `source` into (N, S, width)."""
        n, s, width = x.shape
        inner = width // self.heads
        q = self.query(self.norm(x)).view(n, s, self.heads, inner).transpose(1, 2)
        k, v = self.pair(source).view(n, source.shape[1], 2, self.heads, inner).unbind(2)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        mixed = (q @ k.transpose(-2, -1) * inner**-0.5).softmax(-1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(n, s, width))
