"""Architectures that see by mixing patches or whole rows of channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from predictor.collect.sequence import Block
from predictor.collect.vision import Residual, head


class ChannelsLast(nn.Module):
    """Runs a module of channels-last tensors on (N, C, H, W)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Permute, run, permute back."""
        return self.body(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext(depths: Sequence[int] = (3, 3, 9, 3), width: int = 96) -> nn.Module:
    """ConvNeXt."""

    def block(w: int) -> nn.Module:
        mix = nn.Sequential(
            nn.LayerNorm(w), nn.Linear(w, 4 * w), nn.GELU(), nn.Linear(4 * w, w)
        )  # fmt: skip
        return Residual(
            nn.Sequential(nn.Conv2d(w, w, 7, padding=3, groups=w), ChannelsLast(mix))
        )  # fmt: skip

    parts: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), ChannelsLast(nn.LayerNorm(width))]
    for stage, count in enumerate(depths):
        w = width * 2**stage
        parts += [nn.Conv2d(w // 2, w, 2, 2)] if stage else []
        parts += [block(w) for _ in range(count)]
    return nn.Sequential(*parts, head(w))


class Patches(nn.Module):
    """Images to a sequence of patches with learned positions."""

    def __init__(self, width: int, patch: int, image: int = 224) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.zeros(1, (image // patch) ** 2, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, patches, width)."""
        return self.cut(x).flatten(2).transpose(1, 2) + self.position


class MeanOver(nn.Module):
    """Averages a sequence and classifies."""

    def __init__(self, width: int, classes: int = 1000) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, classes)."""
        return self.out(self.norm(x).mean(1))


def vit(width: int = 384, depth: int = 12, heads: int = 6, patch: int = 16) -> nn.Module:
    """Vision transformer."""
    blocks = [Block(width, heads) for _ in range(depth)]
    return nn.Sequential(Patches(width, patch), *blocks, MeanOver(width))


class Swapped(nn.Module):
    """Runs a module with the last two axes exchanged."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Transpose, run, transpose back."""
        return self.body(x.transpose(1, 2)).transpose(1, 2)


def mixer(width: int = 512, depth: int = 8, patch: int = 16) -> nn.Module:
    """MLP-Mixer."""
    tokens = (224 // patch) ** 2

    def mlp(inputs: int, hidden: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, inputs))

    blocks: list[nn.Module] = []
    for _ in range(depth):
        blocks += [
            Residual(nn.Sequential(nn.LayerNorm(width), Swapped(mlp(tokens, width // 2)))),
            Residual(nn.Sequential(nn.LayerNorm(width), mlp(width, 4 * width))),
        ]
    return nn.Sequential(Patches(width, patch), *blocks, MeanOver(width))
