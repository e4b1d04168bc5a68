"""Export models of PyTorch, torchvision, timm, transformers, TensorFlow and JAX to ONNX.

    python -m benchmarks.corpus.generate DIRECTORY [--only SUBSTRING]

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
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.corpus import torch_models
from benchmarks.corpus.counts import counted
from predictor.graph.skim import Skimmer

_MAX_GRAPH_BYTES = 64 << 20
#: What is exported first and last.
_ORDER = {"torchscript": 0, "dynamo": 1, "torchscript-train": 2}
_RANK = {
    "bert-base": 0, "timm-deit": 0, "timm-swin": 0, "hf-swin": 0, "lstm-language": 0, "gpt2": 1,
    "keras-resnet50": 1, "flax-convolutions": 1, "densenet121": 1, "lora-bert": 1, "vit-b16": 1,
    "efficientnet-b0": 1, "t5": 1, "translation": 2, "recommender": 2, "resnet18-cifar": 2,
    "cyclegan": 2, "a3c": 2, "deepspeech2": 2, "unet": 2, "ncf": 2, "dcgan": 2, "bert-large": 8,
    "resnet101": 7, "resnet152": 7, "timm-nasnet": 9, "vgg11": 7, "vgg16-bn": 8, "xlnet": 6,
}  # fmt: skip


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
    return _export(module, model, inputs, exporter), facts


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


def _uniform(weight: torch.Tensor) -> bool:
    return weight.numel() < 2 or float(weight.detach().float().std()) == 0


def others() -> list[Entry]:
    """Return the graphs of TensorFlow and JAX, where those are installed."""
    found: list[Entry] = []
    for module in ("tf_models", "jax_models"):
        try:
            loaded = __import__(f"benchmarks.corpus.{module}", fromlist=["entries"])
        except ImportError as error:
            print(f"{module} left out: {error}")
            continue
        found += [Entry(*entry) for entry in loaded.entries()]
    return found


def main() -> None:
    """Write what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="", help="names that contain this")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    # One exporter of every model first, so that an early end leaves a wide corpus.
    entries = sorted(
        torch_entries(), key=lambda e: (_RANK.get(e.name, 5), _ORDER.get(e.exporter, 1))
    )
    for entry in (each for kind in (lambda: entries, others) for each in kind()):
        key = f"{entry.name}.{entry.exporter}"
        facts_file = options.directory / f"{key}.json"
        if options.only not in key or facts_file.exists():
            continue
        started = time.perf_counter()
        facts: dict[str, Any] = {"name": entry.name, "exporter": entry.exporter}
        try:
            graph, counts = entry.write()
            facts |= counts
            skimmer = Skimmer(_MAX_GRAPH_BYTES)
            skimmer.feed(graph)
            (options.directory / f"{key}.onnx").write_bytes(skimmer.finish())
        except Exception as error:  # exporters fail in as many ways as there are models
            facts["error"] = f"{type(error).__name__}: {error}"[:300]
            facts["where"] = traceback.format_exc()[-600:]
        facts["seconds"] = round(time.perf_counter() - started, 1)
        facts_file.write_text(json.dumps(facts, indent=1) + "\n")
        print(key, facts["seconds"], facts.get("error", "ok")[:150], flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
