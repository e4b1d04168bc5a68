"""Builds a model of the catalogue, its inputs, and a loss; runs where PyTorch is."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.collect.catalog import LIBRARIES, Model

_CLASSES_BY_READING = 2  # tokens are classified along the last of three axes


def build(model: Model, sequence: int | None) -> nn.Module:
    """Return the module with random weights; libraries are never asked to download any."""
    where, name = model.build.split(":")
    if where not in LIBRARIES:
        factory = getattr(importlib.import_module(f"predictor.collect.{where}"), name)
        built: nn.Module = factory(**model.arguments)
        return built
    if where == "torchvision":
        from torchvision import models

        options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
        return getattr(models, name)(weights=None, **options)
    if where == "timm":
        import timm

        return timm.create_model(name, pretrained=False)
    return _transformer(name, sequence)


def _transformer(name: str, sequence: int | None) -> nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(name)
    if getattr(config, "max_position_embeddings", 1 << 20) < (sequence or 0):
        config.max_position_embeddings = sequence
    config.use_cache = False
    if getattr(config, "is_encoder_decoder", False):
        return _OfTokens(transformers.AutoModelForSeq2SeqLM.from_config(config), twice=True)
    if name in ("gpt2", "opt"):
        return _OfTokens(transformers.AutoModelForCausalLM.from_config(config))
    return _OfTokens(transformers.AutoModelForMaskedLM.from_config(config))


class _OfTokens(nn.Module):
    """A model of the transformers library as a function of its tokens."""

    def __init__(self, body: nn.Module, *, twice: bool = False) -> None:
        super().__init__()
        self.body = body
        self.twice = twice

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, (N, S, vocabulary)."""
        more = {"decoder_input_ids": tokens} if self.twice else {}
        logits: Tensor = self.body(input_ids=tokens, **more).logits
        return logits


def inputs(model: Model, batch: int, sequence: int | None, device: Any) -> Tensor:  # noqa: ANN401
    """Return one batch of what the model reads, random."""
    reads = model.reads
    if reads.startswith("image"):
        side = int(reads.removeprefix("image"))
        return torch.randn(batch, 3, side, side, device=device)
    if reads.startswith("fields"):
        return torch.randint(0, 1000, (batch, int(reads.removeprefix("fields"))), device=device)
    if reads.startswith("vector"):
        return torch.randn(batch, int(reads.removeprefix("vector")), device=device)
    if reads.startswith("nodes"):
        return torch.randn(batch, int(reads.removeprefix("nodes")), 64, device=device)
    if reads == "tokens":
        return torch.randint(0, 1000, (batch, sequence or 128), device=device)
    shapes = {
        "sound": (batch, 80, sequence or 200),
        "points": (batch, 3, sequence or 1024),
        "frames": (batch, 4, 84, 84),
        "clip": (batch, 3, 8, 64, 64),
    }
    return torch.randn(*shapes[reads], device=device)


def loss(output: Tensor) -> Tensor:
    """Return a loss: cross-entropy of classes (the last of 2 or 3 axes), or a mean square."""
    if output.dim() <= _CLASSES_BY_READING + 1:
        flat = output.reshape(-1, output.shape[-1])
        wanted = torch.zeros(len(flat), dtype=torch.long, device=output.device)
        return functional.cross_entropy(flat, wanted)
    return output.float().square().mean()
