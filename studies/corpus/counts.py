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
    storages = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    facts: dict[str, Any] = {
        "parameters": sum(t.numel() for t in own.values()),
        "trainable": sum(t.numel() for t in own.values() if t.requires_grad),
    }
    module.eval()
    facts["flops"] = forward_flops(module, inputs)
    if any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in module.modules()):
        facts["saved_error"] = "what recurrent kernels of the CPU save is not what cuDNN's save"
        return facts
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


def forward_flops(module: nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    """Return PyTorch's count, and of LSTM and GRU layers the products that it leaves out.

    Which of them it sees depends on the kernel that the layer runs on this machine.
    """
    counter = FlopCounterMode(display=False)
    before: dict[nn.Module, int] = {}
    missing = [0.0]

    def enter(layer: nn.Module, _: object) -> None:
        before[layer] = counter.get_total_flops()

    def leave(layer: nn.RNNBase, given: tuple[Any, ...], _: object) -> None:
        x = given[0]
        weights = sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)
        products = 2.0 * x.shape[0] * x.shape[1] * weights
        missing[0] += max(products - (counter.get_total_flops() - before[layer]), 0.0)

    hooks = [
        hook
        for layer in module.modules()
        if isinstance(layer, nn.RNNBase)
        for hook in (layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave))
    ]
    with torch.no_grad(), counter:
        module(**inputs)
    for hook in hooks:
        hook.remove()
    return counter.get_total_flops() + missing[0]
