"""A model's graph for the record: ONNX without its weights, and what its layers say."""

from __future__ import annotations

import base64
import io
import warnings
import zlib
from typing import Any

import torch
from torch import nn

from predictor.collect import models
from predictor.collect.catalog import Model
from predictor.collect.layers import layer_features
from predictor.graph.skim import Skimmer

_MAX_GRAPH_BYTES = 32 << 20
_OPSET = 17


def describe(model: Model, sequence: int | None) -> dict[str, Any]:
    """Return `layers` and `onnx` (compressed, base64), each or why it is not there."""
    found: dict[str, Any] = {}
    for what, get in (("layers", _layers), ("onnx", _onnx)):
        try:
            found[what] = get(model, sequence)
        except Exception as error:  # exporters fail in as many ways as there are models
            found[f"{what}Error"] = f"{type(error).__name__}: {error}"[:300]
    return found


def _layers(model: Model, sequence: int | None) -> dict[str, Any]:
    module = models.build(model, sequence).to("meta")
    return layer_features(module, models.inputs(model, 1, sequence, "meta"))


def _onnx(model: Model, sequence: int | None) -> str:
    module = models.build(model, sequence).eval()
    # Each weight a number of its own: the exporter merges those that are equal, and equal bytes
    # pack well.
    for number, weight in enumerate((*module.parameters(), *module.buffers())):
        if weight.is_floating_point():
            weight.data.fill_(1 + number / 1024)
    skimmer = Skimmer(_MAX_GRAPH_BYTES)
    skimmer.feed(_export(module, models.inputs(model, 1, sequence, "cpu")))
    return base64.b64encode(zlib.compress(skimmer.finish(), 9)).decode()


def _export(module: nn.Module, example: torch.Tensor) -> bytes:
    """Return the ONNX file: by the exporter that traces, for it keeps layers as operators."""
    file = io.BytesIO()
    options: dict[str, Any] = {"opset_version": _OPSET}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(module, (example,), file, dynamo=False, **options)
        except TypeError as error:  # before 2.5 there was no other exporter to choose
            if "dynamo" not in str(error):
                raise
            options["opset_version"] = min(_OPSET, 16)
            torch.onnx.export(module, (example,), file, **options)
    return file.getvalue()
