"""What PyTorch itself counts of a model on one sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def counted(module: nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return parameters, FLOPs and saved bytes of one sample.

    `parameters` counts parameters and floating buffers of an axis or more. `saved_bytes` are the
    storages that autograd keeps for the backward pass, parameters and buffers aside, each storage
    once. The model is in `eval`: a batch of one has no statistics in some layers, and an exported
    graph shows no dropout, whose masks of a byte an element are left out on both sides.
    """
    own = {
        id(t): t
        for t in (*module.parameters(), *module.buffers())
        if t.is_floating_point() and t.dim() > 0
    }
    storages = {t.untyped_storage().data_ptr() for t in own.values()}
    facts: dict[str, Any] = {
        "parameters": sum(t.numel() for t in own.values()),
        "trainable": sum(t.numel() for t in own.values() if t.requires_grad),
    }
    module.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as flops:
        module(**inputs)
    facts["flops"] = flops.get_total_flops() + recurrent_flops(module, inputs)
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    kept: list[torch.Tensor] = []
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            module(**inputs)
        facts["saved_bytes"] = sum(saved.values())
    except Exception as error:
        facts["saved_error"] = str(error)[:200]
    return facts


def recurrent_flops(module: nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    """Return what PyTorch's counter leaves out: the products of LSTM and GRU layers."""
    total = [0.0]

    def hook(layer: nn.RNNBase, given: tuple[Any, ...], _: object) -> None:
        x = given[0]
        steps_and_batch = x.shape[0] * x.shape[1]
        weights = sum(
            p.numel() for name, p in layer.named_parameters() if name.startswith("weight")
        )
        total[0] += 2.0 * steps_and_batch * weights

    hooks = [
        layer.register_forward_hook(hook)
        for layer in module.modules()
        if isinstance(layer, nn.RNNBase)
    ]
    if hooks:
        with torch.no_grad():
            module(**inputs)
    for one in hooks:
        one.remove()
    return total[0]
