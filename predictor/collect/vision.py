"""Architectures that see, of plain torch.nn; sizes are arguments, images are (N, 3, H, W)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def conv_norm(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:  # fmt: skip
    """Return convolution, batch normalisation, activation."""
    padding = (kernel - 1) // 2
    parts = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*parts, *([activation()] if activation else []))


def head(width: int, classes: int = 1000) -> nn.Sequential:
    """Return global pooling and a linear classifier."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class Residual(nn.Module):
    """x + f(x), projected where shapes differ; `after` is applied to the sum."""

    def __init__(
        self, body: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        return self.after(self.shortcut(x) + self.body(x))


class Branches(nn.Module):
    """Several parallel branches, concatenated by channel."""

    def __init__(self, *ways: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Tensor) -> Tensor:
        """Run all ways."""
        return torch.cat([way(x) for way in self.ways], 1)


class SqueezeExcite(nn.Module):
    """Weighs channels by what their means say."""

    def __init__(self, width: int, ratio: int = 4) -> None:
        super().__init__()
        inner = max(width // ratio, 8)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inner, 1), nn.ReLU(),
            nn.Conv2d(inner, width, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        return x * self.gate(x)


def resnet(
    layers: Sequence[int], *, bottleneck: bool = False, width: int = 64, groups: int = 1,
    inner: float = 1.0, small: bool = False, excite: bool = False, classes: int = 1000,
) -> nn.Module:  # fmt: skip
    """ResNet, ResNeXt (groups), wide ResNet (inner), SE-ResNet; `small` images keep their size."""
    stem: list[nn.Module] = [conv_norm(3, width, 3 if small else 7, 1 if small else 2)]
    stem += [] if small else [nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    inputs = width
    for stage, count in enumerate(layers):
        base = width * 2**stage
        outputs = base * (4 if bottleneck else 1)
        for block in range(count):
            stride = 2 if stage and not block else 1
            mid = int(base * inner)
            if bottleneck:
                parts = [
                    conv_norm(inputs, mid, 1), conv_norm(mid, mid, 3, stride, groups),
                    conv_norm(mid, outputs, 1, activation=None),
                ]  # fmt: skip
            else:
                parts = [
                    conv_norm(inputs, mid, 3, stride), conv_norm(mid, outputs, activation=None),
                ]  # fmt: skip
            parts += [nn.Sequential(SqueezeExcite(outputs))] if excite else []
            project = stride > 1 or inputs != outputs
            shortcut = conv_norm(inputs, outputs, 1, stride, activation=None) if project else None
            blocks.append(Residual(nn.Sequential(*parts), shortcut, nn.ReLU()))
            inputs = outputs
    return nn.Sequential(*stem, *blocks, head(inputs, classes))


def vgg(plan: Sequence[int], *, norm: bool = False) -> nn.Module:
    """VGG; 0 in the plan is a pooling."""
    parts: list[nn.Module] = []
    inputs = 3
    for width in plan:
        if not width:
            parts.append(nn.MaxPool2d(2))
            continue
        parts += [
            conv_norm(inputs, width) if norm
            else nn.Sequential(nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU())
        ]  # fmt: skip
        inputs = width
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(inputs * 49, 4096), nn.ReLU(),
        nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 1000),
    )  # fmt: skip


def alexnet(width: int = 64) -> nn.Module:
    """AlexNet, in one tower."""
    w = width
    return nn.Sequential(
        nn.Conv2d(3, w, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(w, 3 * w, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(3 * w, 6 * w, 3, padding=1), nn.ReLU(),
        nn.Conv2d(6 * w, 4 * w, 3, padding=1), nn.ReLU(),
        nn.Conv2d(4 * w, 4 * w, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten(),
        nn.Dropout(), nn.Linear(144 * w, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096),
        nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip


def lenet(width: int = 6) -> nn.Module:
    """LeNet on colour images of 32 pixels."""
    return nn.Sequential(
        nn.Conv2d(3, width, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10),
    )  # fmt: skip


class Dense(nn.Module):
    """Passes its input on together with its output."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Append."""
        return torch.cat([x, self.body(x)], 1)


def densenet(layers: Sequence[int], growth: int = 32) -> nn.Module:
    """DenseNet."""
    width = 2 * growth
    parts: list[nn.Module] = [conv_norm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for stage, count in enumerate(layers):
        for _ in range(count):
            parts.append(Dense(width, growth))
            width += growth
        if stage < len(layers) - 1:
            parts += [conv_norm(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*parts, head(width))


def mobilenet(width: float = 1.0) -> nn.Module:
    """MobileNet v1: depthwise and pointwise convolutions by turns."""
    parts: list[nn.Module] = [conv_norm(3, int(32 * width), stride=2)]
    inputs = int(32 * width)
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)] + [(512, 1)] * 5
    for outputs, stride in [*plan, (1024, 2), (1024, 1)]:
        outputs = int(outputs * width)
        parts += [conv_norm(inputs, inputs, 3, stride, inputs), conv_norm(inputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*parts, head(inputs))


def inverted(
    plan: Sequence[tuple[int, int, int, int, int]], *, excite: bool = False, stem: int = 32,
    last: int = 1280, activation: type[nn.Module] = nn.SiLU,
) -> nn.Module:  # fmt: skip
    """MobileNet v2 and EfficientNet: (expansion, width, blocks, stride, kernel) by stage."""
    parts: list[nn.Module] = [conv_norm(3, stem, stride=2, activation=activation)]
    inputs = stem
    for expansion, outputs, count, first_stride, kernel in plan:
        for block in range(count):
            stride = 1 if block else first_stride
            mid = inputs * expansion
            body: list[nn.Module] = []
            body += [conv_norm(inputs, mid, 1, activation=activation)] if expansion > 1 else []
            body += [conv_norm(mid, mid, kernel, stride, mid, activation)]
            body += [SqueezeExcite(mid)] if excite else []
            body += [conv_norm(mid, outputs, 1, activation=None)]
            chain = nn.Sequential(*body)
            parts.append(Residual(chain) if stride == 1 and inputs == outputs else chain)
            inputs = outputs
    return nn.Sequential(*parts, conv_norm(inputs, last, 1, activation=activation), head(last))


def squeezenet(width: int = 16) -> nn.Module:
    """SqueezeNet: fire modules."""

    def fire(inputs: int, squeeze: int) -> nn.Module:
        wide = 4 * squeeze
        return nn.Sequential(
            nn.Conv2d(inputs, squeeze, 1), nn.ReLU(),
            Branches(nn.Conv2d(squeeze, wide, 1), nn.Conv2d(squeeze, wide, 3, padding=1)),
            nn.ReLU(),
        )  # fmt: skip

    w = width
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2), fire(64, w), fire(8 * w, w),
        nn.MaxPool2d(3, 2), fire(8 * w, 2 * w), fire(16 * w, 2 * w), nn.MaxPool2d(3, 2),
        fire(16 * w, 3 * w), fire(24 * w, 3 * w), fire(24 * w, 4 * w), fire(32 * w, 4 * w),
        nn.Conv2d(32 * w, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


class Shuffle(nn.Module):
    """Mixes the channels of groups."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """Permute the channels."""
        n, c, h, w = x.shape
        return x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet(width: int = 240, groups: int = 3) -> nn.Module:
    """ShuffleNet v1, its shortcuts as sums."""
    parts: list[nn.Module] = [conv_norm(3, 24, stride=2), nn.MaxPool2d(3, 2, 1)]
    inputs = 24
    for stage, count in enumerate((4, 8, 4)):
        outputs = width * 2**stage
        for block in range(count):
            stride = 1 if block else 2
            mid = outputs // 4
            body = nn.Sequential(
                conv_norm(inputs, mid, 1, groups=groups if inputs != 24 else 1), Shuffle(groups),
                conv_norm(mid, mid, 3, stride, mid, None),
                conv_norm(mid, outputs, 1, groups=groups, activation=None),
            )  # fmt: skip
            shortcut = conv_norm(inputs, outputs, 1, 2, activation=None) if stride == 2 else None
            parts.append(Residual(body, shortcut, nn.ReLU()))
            inputs = outputs
    return nn.Sequential(*parts, head(inputs))


def inception(width: int = 64, blocks: int = 9) -> nn.Module:
    """GoogLeNet's kind: four branches a block."""
    parts: list[nn.Module] = [
        conv_norm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1), conv_norm(width, 3 * width),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    inputs = 3 * width
    for block in range(blocks):
        w = width * (1 + block // 3)
        parts.append(
            Branches(
                conv_norm(inputs, w, 1),
                nn.Sequential(conv_norm(inputs, w, 1), conv_norm(w, 2 * w)),
                nn.Sequential(conv_norm(inputs, w // 4, 1), conv_norm(w // 4, w // 2, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(inputs, w // 2, 1)),
            )
        )
        inputs = 4 * w
        parts += [nn.MaxPool2d(3, 2, 1)] if block in (1, 6) else []
    return nn.Sequential(*parts, head(inputs))


def network_in_network(width: int = 192) -> nn.Module:
    """Network in network, on images of 32 pixels."""

    def block(inputs: int, outputs: int, kernel: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 1), nn.ReLU(), nn.Conv2d(outputs, outputs, 1), nn.ReLU(),
        )  # fmt: skip

    w = width
    return nn.Sequential(
        block(3, w, 5), nn.MaxPool2d(3, 2, 1), nn.Dropout(), block(w, w, 5), nn.AvgPool2d(3, 2, 1),
        nn.Dropout(), block(w, w, 3), head(w, 10),
    )  # fmt: skip
