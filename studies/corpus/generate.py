"""Export models of PyTorch, torchvision, timm, transformers, TensorFlow and JAX to ONNX.

    python -m studies.corpus.generate DIRECTORY [--only REGEX] [--from torch tf jax]

All weights are random. A graph is kept without its weights, next to a JSON file with what the
framework itself counts on one sample: parameters and floating buffers, FLOPs of the forward pass
(a multiply-add is two) and the bytes that autograd saves for the backward pass. A model that an
exporter cannot export is noted with the exporter's words. What is there already is not made again.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from predictor.graph.skim import Skimmer
from studies.corpus import torch_models
from studies.corpus.counts import counted

_MAX_GRAPH_BYTES = 64 << 20
#: What is exported first and last: cheap exporters and small models, then the rest.
_ORDER = {"torchscript": 0, "dynamo": 2, "torchscript-train": 3}
_LARGE = frozenset({
    "bert-base", "bert-large", "resnet101", "resnet152", "timm-nasnet", "vgg11", "vgg16",
    "vgg16-bn", "vgg19", "xlnet", "alexnet", "wide-resnet50", "clip", "timm-beit", "hf-vit",
    "vit-b16", "gpt2", "deepspeech2", "distilbert", "timm-inception-v4", "bert-mlm", "roberta",
})  # fmt: skip
_MODULES = {"tf": "tf_models", "jax": "jax_models"}


@dataclass(frozen=True)
class Entry:
    """One graph of the corpus: how its model is built and which exporter writes it."""

    name: str
    exporter: str
    write: Callable[[], tuple[bytes, dict[str, Any]]]


def torch_entries() -> list[Entry]:
    """Return the graphs of PyTorch models."""
    return [
        Entry(model.name, exporter, partial(_torch, model, exporter))
        for model in torch_models.MODELS
        for exporter in model.exporters
    ]


def _torch(model: torch_models.Model, exporter: str) -> tuple[bytes, dict[str, Any]]:
    torch.manual_seed(0)
    module = model.build()
    inputs = model.inputs(1)
    if type(module).__module__.startswith("transformers"):
        module = torch_models.first_output(module, tuple(inputs))
    facts = counted(module, inputs) | {"family": model.family}
    if model.sequence_axis is not None:
        facts["sequence"] = next(iter(inputs.values())).shape[model.sequence_axis]
    if exporter in ("torchscript-train", "dynamo-train"):
        module.train()
    else:
        module.eval()
    if exporter == "torchscript-half":
        module = module.half()
        inputs = {k: v.half() if v.is_floating_point() else v for k, v in inputs.items()}
    if exporter == "torchscript-batch8":
        inputs = model.inputs(8)
    graph = _export(module, model, inputs, exporter)
    if exporter in _AFTERWARDS:
        graph = _rewritten(graph, inputs, exporter)
    return graph, facts


def _export(
    module: nn.Module, model: torch_models.Model, inputs: dict[str, torch.Tensor], exporter: str
) -> bytes:
    names = list(inputs)
    file = io.BytesIO()
    common: dict[str, Any] = {"input_names": names}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if exporter.startswith("dynamo"):
            if exporter == "dynamo":
                wide = model.inputs(2)
                batch = torch.export.Dim("batch", min=1, max=4096)
                shapes = {k: {v.dim() and model.batch_axis: batch} for k, v in wide.items()}
                program = torch.onnx.export(
                    module, (), kwargs=wide, dynamo=True, dynamic_shapes=shapes,
                    input_names=names, verbose=False,
                )  # fmt: skip
            else:
                program = torch.onnx.export(
                    module, (), kwargs=inputs, dynamo=True, input_names=names, verbose=False
                )
            assert program is not None
            return bytes(program.model_proto.SerializeToString())
        axes: dict[str, dict[int, str]] = {}
        if exporter not in ("torchscript-batch8", "torchscript-fixed"):
            # As HF optimum and most tutorials name them.
            for name, tensor in inputs.items():
                axes[name] = {model.batch_axis: "batch_size"}
                if model.sequence_axis is not None and tensor.dim() > model.sequence_axis:
                    axes[name][model.sequence_axis] = "sequence_length"
        mode = (
            torch.onnx.TrainingMode.TRAINING
            if exporter == "torchscript-train"
            else torch.onnx.TrainingMode.EVAL
        )
        # Equal weights would be merged by the exporter.
        for number, weight in enumerate((*module.parameters(), *module.buffers())):
            if weight.is_floating_point() and _uniform(weight):
                weight.data.fill_(1 + number / 8192)
        torch.onnx.export(
            module, tuple(inputs.values()), file, dynamo=False, opset_version=17, dynamic_axes=axes,
            training=mode, do_constant_folding=mode is torch.onnx.TrainingMode.EVAL, **common,
        )  # fmt: skip
    return file.getvalue()


#: What ONNX Runtime makes of the tracing exporter's graphs.
_AFTERWARDS = ("int8-dynamic", "int8-static", "ort-extended")


def _rewritten(graph: bytes, inputs: dict[str, torch.Tensor], exporter: str) -> bytes:
    """Return a graph as ONNX Runtime quantises it or fuses its operators."""
    import onnxruntime
    from onnxruntime import quantization

    class Sample(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = [{name: tensor.numpy() for name, tensor in inputs.items()}]

        def get_next(self) -> dict[str, Any] | None:
            return self._left.pop() if self._left else None

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        before.write_bytes(graph)
        if exporter == "int8-dynamic":
            quantization.quantize_dynamic(before, after)
        elif exporter == "int8-static":
            quantization.quantize_static(before, after, Sample())
        else:
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = (
                onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            )
            options.optimized_model_filepath = str(after)
            onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        return after.read_bytes()


def _uniform(weight: torch.Tensor) -> bool:
    return weight.numel() < 2 or float(weight.detach().float().std()) == 0


def other_entries(kind: str) -> list[Entry]:
    """Return the graphs of TensorFlow or JAX."""
    module = import_module(f"studies.corpus.{_MODULES[kind]}")
    return [Entry(*entry) for entry in module.entries()]


def main() -> None:
    """Write what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="", help="names that match this expression")
    parser.add_argument("--from", nargs="+", default=["torch", *_MODULES], dest="kinds")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for kind in options.kinds:
        entries = torch_entries() if kind == "torch" else other_entries(kind)
        entries.sort(key=lambda e: (e.name in _LARGE, _ORDER.get(e.exporter, 1)))
        for entry in entries:
            key = f"{entry.name}.{entry.exporter}"
            if re.search(options.only, key) and not (options.directory / f"{key}.json").exists():
                _write(entry, options.directory / key)
                gc.collect()


def _write(entry: Entry, path: Path) -> None:
    """Write a graph and its facts, or why there is none."""
    started = time.process_time()
    facts: dict[str, Any] = {"name": entry.name, "exporter": entry.exporter}
    try:
        graph, counts = entry.write()
        facts |= counts
        skimmer = Skimmer(_MAX_GRAPH_BYTES)
        skimmer.feed(graph)
        path.with_name(f"{path.name}.onnx").write_bytes(skimmer.finish())
    except Exception as error:  # exporters fail in as many ways as there are models
        facts["error"] = f"{type(error).__name__}: {error}"[:300]
        facts["where"] = traceback.format_exc()[-600:]
    facts["cpu_s"] = round(time.process_time() - started, 1)
    path.with_name(f"{path.name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(path.name, facts["cpu_s"], facts.get("error", "ok")[:150], flush=True)


if __name__ == "__main__":
    main()
