"""The models that the shared data measured, rebuilt in PyTorch and exported to ONNX.

    python -m studies.predictions.workloads DIRECTORY [--only NAME ...]

It runs in the environment of `make corpus`. The data name their models only; each entry says how
the model is rebuilt. `python -m studies.predictions.features` turns the graphs into features.
"""

from __future__ import annotations

import argparse
import copy
import gc
import io
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from predictor.graph.skim import Skimmer
from studies.corpus import torch_models as corpus
from studies.corpus.torch_models import Inputs, image, tokens

_MAX_GRAPH_BYTES = 64 << 20


@dataclass(frozen=True)
class Workload:
    """A model as its measurement used it; `inputs(1)` is one sample."""

    build: Callable[[], nn.Module]
    inputs: Inputs
    batch_axis: int = 0


class _Overfeat(nn.Module):
    """OverFeat, the fast model: 231 x 231 images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 96, 11, 4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(96, 256, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(256, 512, 3, 1, 1), nn.ReLU(), nn.Conv2d(512, 1024, 3, 1, 1), nn.ReLU(),
            nn.Conv2d(1024, 1024, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(1024 * 36, 3072), nn.ReLU(), nn.Linear(3072, 4096), nn.ReLU(),
            nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _GoogLeNet(nn.Module):
    """GoogLeNet as in tf_cnn_benchmarks, which Salus measured: no normalisation, 5 x 5 kernels.

    torchvision's has batch normalisation, so that it keeps twice the activations.
    """

    def __init__(self) -> None:
        super().__init__()

        def conv(a: int, b: int, k: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, k, stride, k // 2), nn.ReLU())

        def pool() -> nn.MaxPool2d:
            return nn.MaxPool2d(3, 2, 1)

        def inception(a: int, *widths: int) -> nn.ModuleList:
            one, before_3, three, before_5, five, pooled = widths
            return nn.ModuleList(
                [conv(a, one, 1), nn.Sequential(conv(a, before_3, 1), conv(before_3, three, 3)),
                 nn.Sequential(conv(a, before_5, 1), conv(before_5, five, 5)),
                 nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(a, pooled, 1))]
            )  # fmt: skip

        self.stem = nn.Sequential(
            conv(3, 64, 7, 2), pool(), conv(64, 64, 1), conv(64, 192, 3), pool()
        )
        self.blocks, width = nn.ModuleList(), 192
        for block in (
            (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None,
            (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), None,
            (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
        ):  # fmt: skip
            self.blocks.append(pool() if block is None else inception(width, *block))
            if block is not None:
                width = block[0] + block[2] + block[4] + block[5]
        self.out = nn.Linear(1024, 1001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if isinstance(block, nn.ModuleList):
                x = torch.cat([branch(x) for branch in block], 1)
            else:
                x = block(x)
        return self.out(x.mean((2, 3)))


class _Discriminator(nn.Module):
    """CycleGAN's discriminator of 70 x 70 patches."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2)]
        for a, b, stride in ((64, 128, 2), (128, 256, 2), (256, 512, 1)):
            layers += [nn.Conv2d(a, b, 4, stride, 1), nn.InstanceNorm2d(b), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(512, 1, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _CycleGan(nn.Module):
    """All passes of one step of CycleGAN: six of the generators, four of the discriminators."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.f = corpus._ResidualGenerator(), corpus._ResidualGenerator()
        self.d, self.e = _Discriminator(), _Discriminator()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        fake_y, fake_x = self.g(x), self.f(y)
        images = (self.f(fake_y), self.g(fake_x), self.f(x), self.g(y))
        judged = (self.d(x), self.d(fake_x), self.e(y), self.e(fake_y))
        means = [each.mean((1, 2, 3)) for each in (*images, *judged)]
        return torch.stack(means).sum(0)


class _Gru(nn.Module):
    """Deep Speech 2 in the Keras examples: five bidirectional GRU layers of width 512."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (11, 41), (2, 2), (5, 20), bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, (11, 21), (1, 2), (5, 10), bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        )  # fmt: skip
        self.rnn = nn.GRU(32 * 49, 512, 5, bidirectional=True, batch_first=True)
        self.out = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolutions(x)
        return self.out(self.rnn(y.transpose(1, 2).flatten(2))[0])


class _Text(nn.Module):
    """Text classification in the Keras examples: three convolutions over 200 embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20002, 100)
        self.layers = nn.Sequential(
            nn.Conv1d(100, 128, 5), nn.ReLU(), nn.MaxPool1d(5), nn.Conv1d(128, 128, 5), nn.ReLU(),
            nn.MaxPool1d(5), nn.Conv1d(128, 128, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(1),
            nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 20),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embed(x).transpose(1, 2))


class _Messages(nn.Module):
    """Message passing over molecules in the Keras examples: 24 atoms and 76 edges a molecule.

    Each edge transforms its atom's 64 features by a matrix made of its 7 own features.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.edge = nn.Linear(7, width * width)
        self.update = nn.GRUCell(width, width)
        layer = nn.TransformerEncoderLayer(width, 8, 512, batch_first=True)
        self.read = nn.TransformerEncoder(layer, 1)
        self.out = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, atoms: torch.Tensor, edges: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        batch, width = atoms.shape[0], self.width
        state = atoms
        for _ in range(4):
            matrices = self.edge(edges).reshape(batch, -1, width, width)
            near = torch.gather(state, 1, ends.unsqueeze(2).expand(-1, -1, width))
            sent = torch.matmul(matrices, near.unsqueeze(3)).squeeze(3)
            total = torch.zeros_like(state).scatter_add(
                1, ends.unsqueeze(2).expand(-1, -1, width), sent
            )
            gates = self.update
            fresh = torch.sigmoid(
                nn.functional.linear(total, gates.weight_ih, gates.bias_ih)
                + nn.functional.linear(state, gates.weight_hh, gates.bias_hh)
            )
            kept, reset, new = fresh.chunk(3, 2)
            state = kept * state + (1 - kept) * torch.tanh(reset * new)
        return self.out(self.read(state).mean(1))


class _Series(nn.Module):
    """Classification of time series in the Keras examples: attention over 500 values of width 1."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.ModuleList(
                [nn.Linear(1, 1024), nn.Linear(1, 1024), nn.Linear(1, 1024), nn.Linear(1024, 1),
                 nn.LayerNorm(1), nn.Linear(1, 4), nn.Linear(4, 1), nn.LayerNorm(1)]
            )
            for _ in range(4)
        )  # fmt: skip
        self.out = nn.Sequential(nn.Linear(500, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for query, key, value, out, one, up, down, two in self.parts:
            heads = [
                each(x).reshape(x.shape[0], 500, 4, 256).transpose(1, 2)
                for each in (query, key, value)
            ]
            weights = torch.softmax(torch.matmul(heads[0], heads[1].transpose(2, 3)) / 16, -1)
            mixed = torch.matmul(weights, heads[2]).transpose(1, 2).reshape(x.shape[0], 500, 1024)
            y = one(out(mixed)) + x
            x = two(down(torch.relu(up(y)))) + y
        return self.out(x.mean(2))


class _Darknet(nn.Module):
    """YOLOv3 at 416 x 416: Darknet-53 with three heads of 255 channels."""

    def __init__(self) -> None:
        super().__init__()

        def cbl(a: int, b: int, k: int, s: int = 1) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.1)
            )

        self.stem = cbl(3, 32, 3)
        self.down, self.blocks = nn.ModuleList(), nn.ModuleList()
        for width, count in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
            self.down.append(cbl(width // 2, width, 3, 2))
            self.blocks.append(
                nn.ModuleList(
                    nn.Sequential(cbl(width, width // 2, 1), cbl(width // 2, width, 3))
                    for _ in range(count)
                )
            )

        def head(a: int, w: int) -> nn.ModuleList:
            body = nn.Sequential(
                cbl(a, w, 1), cbl(w, 2 * w, 3), cbl(2 * w, w, 1), cbl(w, 2 * w, 3), cbl(2 * w, w, 1)
            )
            return nn.ModuleList([body, nn.Sequential(cbl(w, 2 * w, 3), nn.Conv2d(2 * w, 255, 1))])

        self.heads = nn.ModuleList([head(1024, 512), head(768, 256), head(384, 128)])
        self.up = nn.ModuleList([cbl(512, 256, 1), cbl(256, 128, 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = self.stem(x), []
        for down, blocks in zip(self.down, self.blocks, strict=True):
            x = down(x)
            for block in blocks:
                x = x + block(x)
            kept.append(x)
        found = []
        for level, (body, out) in enumerate(self.heads):
            x = body(x)
            found.append(out(x).flatten(2))
            if level < 2:
                x = nn.functional.interpolate(self.up[level](x), scale_factor=2.0)
                x = torch.cat([x, kept[3 - level]], 1)
        return torch.cat(found, 2)


class _UNet34(nn.Module):
    """U-Net over a ResNet-34 with 21 classes, 512 x 512 images."""

    def __init__(self) -> None:
        super().__init__()
        import torchvision

        r = torchvision.models.resnet34(weights=None)
        self.stages = nn.ModuleList(
            [nn.Sequential(r.conv1, r.bn1, r.relu), nn.Sequential(r.maxpool, r.layer1), r.layer2,
             r.layer3, r.layer4]
        )  # fmt: skip
        widths = ((512 + 256, 256), (256 + 128, 128), (128 + 64, 64), (64 + 64, 32), (32, 16))
        self.joins = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(a, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
                nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
            )
            for a, b in widths
        )  # fmt: skip
        self.out = nn.Conv2d(16, 21, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        kept.pop()
        for join in self.joins:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = join(torch.cat([x, kept.pop()], 1) if kept else x)
        return self.out(x)


def _of_corpus(name: str, inputs: Inputs | None = None) -> Workload:
    model = next(each for each in corpus.MODELS if each.name == name)
    return Workload(model.build, inputs or model.inputs, model.batch_axis)


def _bert(width: int, layers: int, inner: str = "BertForMaskedLM") -> Callable[[], nn.Module]:
    return corpus._hf(
        inner, "BertConfig", hidden_size=width, num_hidden_layers=layers,
        num_attention_heads=width // 64, intermediate_size=4 * width, vocab_size=28996,
    )  # fmt: skip


def _xlnet(width: int, layers: int) -> Callable[[], nn.Module]:
    return corpus._hf(
        "XLNetModel", "XLNetConfig", d_model=width, n_layer=layers, n_head=width // 64,
        d_inner=4 * width, vocab_size=32000,
    )  # fmt: skip


def _two_images(batch: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 3, 256, 256), "y": torch.randn(batch, 3, 256, 256)}


def _molecules(batch: int) -> dict[str, torch.Tensor]:
    return {
        "atoms": torch.randn(batch, 24, 64),
        "edges": torch.randn(batch, 76, 7),
        "ends": torch.randint(0, 24, (batch, 76)),
    }


_NAMES = (
    "resnet50", "resnet101", "resnet152", "alexnet", "vgg11", "vgg16", "vgg19",
    "inception-v3", "timm-inception-v4", "mobilenet-v2", "efficientnet-b0", "resnet18-cifar",
    "translation", "lstm-language", "recommender", "a3c", "ncf", "deepspeech2",
)  # fmt: skip
WORKLOADS: dict[str, Workload] = {
    **{name: _of_corpus(name) for name in _NAMES},
    "googlenet-plain": Workload(_GoogLeNet, image()),
    "overfeat": Workload(_Overfeat, image(231)),
    "xception-224": _of_corpus("timm-xception", image(224)),
    "efficientnet-b0-32": Workload(corpus._timm("efficientnet_b0"), image(32)),
    "mobilenet-v3-small-32": Workload(corpus._timm("mobilenetv3_small_100"), image(32)),
    "resnet18-32": Workload(corpus._timm("resnet18"), image(32)),
    "resnet34-32": Workload(corpus._timm("resnet34"), image(32)),
    "resnet50-32": Workload(corpus._tv("resnet50"), image(32)),
    "mobilenet-v2-32": Workload(corpus._tv("mobilenet_v2"), image(32)),
    "cyclegan": Workload(_CycleGan, _two_images),
    "yolov3": Workload(_Darknet, image(416)),
    "unet-resnet34": Workload(_UNet34, image(512)),
    "speech-gru": Workload(_Gru, lambda b: {"x": torch.randn(b, 1, 1100, 193)}),
    "text-convolutions": Workload(_Text, lambda b: {"x": torch.randint(0, 20000, (b, 200))}),
    "messages": Workload(_Messages, _molecules),
    "series-transformer": Workload(_Series, lambda b: {"x": torch.randn(b, 500, 1)}),
    "bert-base-384": Workload(_bert(768, 12, "BertForQuestionAnswering"), tokens(384)),
    "bert-base-512": Workload(_bert(768, 12, "BertForSequenceClassification"), tokens(512)),
    "bert-base-lm-512": Workload(_bert(768, 12), tokens(512)),
    "bert-large-lm-512": Workload(_bert(1024, 24), tokens(512)),
    "xlnet-base-512": Workload(_xlnet(768, 12), tokens(512)),
    "xlnet-large-512": Workload(_xlnet(1024, 24), tokens(512)),
}


def export(workload: Workload) -> bytes:
    """Return the ONNX graph as a user exports it for inference, batch left open."""
    module, inputs = workload.build(), workload.inputs(1)
    names = list(inputs)
    if type(module).__module__.startswith("transformers"):
        module = corpus.first_output(module, tuple(inputs))
    module.eval()
    file = io.BytesIO()
    axes = {name: {workload.batch_axis: "batch_size"} for name in names}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for number, weight in enumerate((*module.parameters(), *module.buffers())):
            if weight.is_floating_point() and (
                weight.numel() < 2 or bool((weight.flatten()[:64] == weight.flatten()[0]).all())
            ):
                weight.data.fill_(1 + number / 8192)  # equal weights would be merged
        torch.onnx.export(
            module, tuple(copy.copy(list(inputs.values()))), file, dynamo=False, opset_version=17,
            dynamic_axes=axes, input_names=names, do_constant_folding=True,
        )  # fmt: skip
    return file.getvalue()


def main() -> None:
    """Write the graphs that are missing, without their weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # the exporter does not know the fused layer
    for name in options.only:
        target = options.directory / f"{name}.onnx"
        if target.exists():
            continue
        torch.manual_seed(0)
        started = time.perf_counter()
        try:
            skimmer = Skimmer(_MAX_GRAPH_BYTES)
            skimmer.feed(export(WORKLOADS[name]))
            target.write_bytes(skimmer.finish())
            print(name, f"{time.perf_counter() - started:.1f} s", flush=True)
        except Exception as error:  # exporters fail in as many ways as there are models
            print(name, type(error).__name__, str(error)[:200], flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
