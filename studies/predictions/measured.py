"""The configurations that the shared data measured alone on a GPU, by the names of `workloads`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tandem.contracts.resources import Optimizer

GIB = 1024**3
MIB = 1024**2
A100, P100, V100, T4 = (
    "NVIDIA A100-SXM4-40GB", "Tesla P100-PCIE-16GB", "Tesla V100-SXM2-16GB", "Tesla T4",
)  # fmt: skip

#: Models and families of Gavel's and MISO's names and of Pollux' applications.
GAVEL = {
    "ResNet-18": ("resnet18-cifar", "ResNet"), "ResNet-50": ("resnet50", "ResNet"),
    "Transformer": ("translation", "Transformer"), "LM": ("lstm-language", "LSTM"),
    "Recommendation": ("recommender", "Auto-encoder"), "CycleGAN": ("cyclegan", "CycleGAN"),
    "A3C": ("a3c", "A3C"),
}  # fmt: skip
_POLLUX = {
    "imagenet": ("resnet50", "ResNet"), "cifar10": ("resnet18-cifar", "ResNet"),
    "bert": ("bert-base-384", "BERT"), "yolov3": ("yolov3", "YOLO"),
    "deepspeech2": ("deepspeech2", "DeepSpeech2"), "ncf": ("ncf", "NCF"),
}  # fmt: skip
_MISO = {
    "bert": ("bert-base-512", "BERT"), "cyclegan": ("cyclegan", "CycleGAN"),
    "deepspeech2": ("speech-gru", "DeepSpeech2"), "embedding": ("text-convolutions", "TextCNN"),
    "gnn": ("messages", "MPNN"), "mobilenet": ("mobilenet-v2-32", "MobileNet"),
    "resnet": ("resnet50-32", "ResNet"), "transformer": ("series-transformer", "Transformer"),
}  # fmt: skip
_SALUS = {
    "vgg11": ("vgg11", "VGG"), "vgg16": ("vgg16", "VGG"), "vgg19": ("vgg19", "VGG"),
    "resnet50": ("resnet50", "ResNet"), "resnet101": ("resnet101", "ResNet"),
    "resnet152": ("resnet152", "ResNet"), "googlenet": ("googlenet-plain", "Inception"),
    "alexnet": ("alexnet", "AlexNet"), "overfeat": ("overfeat", "OverFeat"),
    "inception3": ("inception-v3", "Inception"), "inception4": ("timm-inception-v4", "Inception"),
}  # fmt: skip
#: By script, with the batch where the arguments do not say it; the scripts use Adam and FP32. The
#: one called resnet50_cifar100 makes an EfficientNet. DLRM and Mask R-CNN have no graph here, and
#: GPT-2 large is larger than the file that the exporter can write.
_CARMA = {
    "BERT_base_on_wiki.py": ("bert-base-lm-512", "BERT", 32),
    "BERT_large_on_wiki.py": ("bert-large-lm-512", "BERT", 8),
    "efficientNet_cifar100.py": ("efficientnet-b0-32", "EfficientNet", None),
    "efficientNet.py": ("efficientnet-b0", "EfficientNet", None),
    "Inception.py": ("inception-v3", "Inception", None),
    "mobilenet_cifar100.py": ("mobilenet-v3-small-32", "MobileNet", None),
    "mobilenet.py": ("mobilenet-v2", "MobileNet", None),
    "resnet18_cifar100.py": ("resnet18-32", "ResNet", None),
    "resnet34_cifar100.py": ("resnet34-32", "ResNet", None),
    "resnet50_cifar100.py": ("efficientnet-b0-32", "EfficientNet", None),
    "resnet50.py": ("resnet50", "ResNet", None),
    "vgg.py": ("vgg16", "VGG", None),
    "Xception.py": ("xception-224", "Xception", None),
    "xlnet_base_cased.py": ("xlnet-base-512", "XLNet", 8),
    "xlnet_large_cased.py": ("xlnet-large-512", "XLNet", 4),
    "UNet.py": ("unet-resnet34", "U-Net", 8),
}
_ALNAIR = {"ResNet50": ("resnet50-32", "ResNet"), "MobileNet": ("mobilenet-v2-32", "MobileNet")}
_P100_BYTES = 16_280 * MIB
#: Whose input pipelines or environments are known to set the pace, by what they do.
INPUT_BOUND = frozenset({"A3C", "Auto-encoder"})


@dataclass(frozen=True)
class Measured:
    """One configuration; what was not measured is None. Bytes, percent, seconds."""

    source: str
    model: str
    family: str
    batch: int
    gpu: str
    framework: str
    optimizer: Optimizer | None
    memory_bytes: float | None = None
    utilisation: float | None = None
    step_s: float | None = None


def measured(data: Path) -> list[Measured]:
    """Return every configuration of `data/loads`, `data/colocation` (alone) and `data/pollux`."""
    return [*_gavel(data), *_pollux(data), *_miso(data), *_salus(data), *_carma(data)]


def unused(data: Path) -> list[Measured]:
    """Return configurations that nothing was adjusted to: Keras on a P100, images of 32 x 32.

    The file does not say the size of the images, and its optimiser is that of Keras' examples.
    """
    found = []
    with (data / "loads" / "alnair-p100.csv").open() as file:
        for row in csv.DictReader(file):
            if row["model"] in _ALNAIR:
                model, family = _ALNAIR[row["model"]]
                found.append(
                    Measured(
                        "alnair", model, family, int(row["batch_size"]), P100, "tensorflow",
                        Optimizer.ADAM, utilisation=float(row["gpu_util_max_percent"]),
                        memory_bytes=float(row["gpu_memory_max_percent"]) / 100 * _P100_BYTES,
                    )
                )  # fmt: skip
    return found


def _gavel(data: Path) -> Iterator[Measured]:
    matrix = json.loads((data / "colocation" / "gavel-oracle-v100-p100.json").read_text())
    for gpu, jobs in matrix.items():
        for name, rates in jobs.items():
            match = re.fullmatch(r"([\w-]+?)(?: \(batch size (\d+)\))?", name)
            assert match is not None
            model, family = GAVEL[match[1]]
            yield Measured(
                "gavel", model, family, int(match[2] or 1), {"v100": V100, "p100": P100}[gpu],
                "pytorch", None, step_s=1 / rates["null"],
            )  # fmt: skip


def _pollux(data: Path) -> Iterator[Measured]:
    for application, (model, family) in _POLLUX.items():
        with (data / "pollux" / application / "placements.csv").open() as file:
            for row in csv.DictReader(file):
                if row["placement"] == "1":
                    yield Measured(
                        "pollux", model, family, int(row["local_bsz"]), T4, "pytorch",
                        None, step_s=float(row["step_time"]),
                    )  # fmt: skip


def _miso(data: Path) -> Iterator[Measured]:
    with (data / "loads" / "miso-a100.csv").open() as file:
        for row in csv.DictReader(file):
            model, family = _MISO[row["model"]]
            yield Measured(
                "miso", model, family, int(row["batch_size"]), A100, "tensorflow",
                Optimizer.ADAM, memory_bytes=float(row["memory_mib"]) * MIB,
                utilisation=float(row["sm_util_percent"]),
            )  # fmt: skip


def _salus(data: Path) -> Iterator[Measured]:
    with (data / "loads" / "salus-tensorflow.csv").open() as file:
        for row in csv.DictReader(file):
            model, family = _SALUS[row["model"]]
            yield Measured(
                "salus", model, family, int(row["batch_size"]), P100, "tensorflow", Optimizer.SGD,
                memory_bytes=float(row["memory_peak_mb"]) * 1e6, step_s=float(row["step_s"]),
            )  # fmt: skip


def _carma(data: Path) -> Iterator[Measured]:
    with (data / "loads" / "carma-a100.csv").open() as file:
        for row in csv.DictReader(file):
            if row["script"] not in _CARMA:
                continue
            model, family, batch = _CARMA[row["script"]]
            said = re.search(r"--batch_size_(\d+)", row["arguments"])
            yield Measured(
                "carma", model, family, int(said[1]) if said else batch or 1, A100, "pytorch",
                Optimizer.ADAM, memory_bytes=float(row["memory_peak_mib"]) * MIB,
            )  # fmt: skip
