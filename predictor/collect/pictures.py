"""Architectures that make pictures or masks, judge them, or watch clips."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from predictor.collect.vision import Residual, conv_norm, head


class UNet(nn.Module):
    """U-Net: down, up, and across; a mask as large as the image."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()

        def double(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(conv_norm(inputs, outputs), conv_norm(outputs, outputs))

        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            double(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.join = nn.ModuleList(double(2 * w, w) for w in widths[:-1])
        self.out = nn.Conv2d(width, 2, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, 2, H, W)."""
        kept = []
        for level, block in enumerate(self.down):
            x = block(x if not level else self.pool(x))
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x = self.join[level](torch.cat([kept[level], self.up[level](x)], 1))
        return self.out(x)


def generator(width: int = 64, blocks: int = 9) -> nn.Module:
    """CycleGAN's generator: residual blocks between strided convolutions."""

    def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Module:
        padding = (kernel - 1) // 2
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.InstanceNorm2d(outputs),
            nn.ReLU(),
        )  # fmt: skip

    w = width
    middle = [
        Residual(nn.Sequential(convolution(4 * w, 4 * w), convolution(4 * w, 4 * w)))
        for _ in range(blocks)
    ]
    return nn.Sequential(
        convolution(3, w, 7), convolution(w, 2 * w, 3, 2), convolution(2 * w, 4 * w, 3, 2), *middle,
        nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), nn.ReLU(), nn.ConvTranspose2d(2 * w, w, 2, 2),
        nn.ReLU(), nn.Conv2d(w, 3, 7, padding=3), nn.Tanh(),
    )  # fmt: skip


def discriminator(width: int = 64, depth: int = 4) -> nn.Module:
    """DCGAN's discriminator."""
    parts: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
    for level in range(1, depth):
        a, b = width * 2 ** (level - 1), width * 2**level
        parts += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*parts, head(width * 2 ** (depth - 1), 2))


def super_resolution(width: int = 64, blocks: int = 16) -> nn.Module:
    """EDSR: twice as large images, without normalisation."""

    def block() -> nn.Module:
        return Residual(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
            )
        )  # fmt: skip

    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *(block() for _ in range(blocks)),
        nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2),
        nn.Conv2d(width, 3, 3, padding=1),
    )  # fmt: skip


def autoencoder(width: int = 32, depth: int = 4) -> nn.Module:
    """Return a convolutional autoencoder."""
    parts: list[nn.Module] = []
    inputs = 3
    for level in range(depth):
        parts.append(conv_norm(inputs, width * 2**level, 3, 2))
        inputs = width * 2**level
    for level in reversed(range(depth)):
        outputs = width * 2 ** (level - 1) if level else 3
        parts += [nn.ConvTranspose2d(inputs, outputs, 2, 2), nn.ReLU() if level else nn.Sigmoid()]
        inputs = outputs
    return nn.Sequential(*parts)


def video(width: int = 32, depth: int = 4) -> nn.Module:
    """C3D's kind, on clips (N, 3, 8, 64, 64)."""
    parts: list[nn.Module] = []
    inputs = 3
    for level in range(depth):
        outputs = width * 2**level
        parts += [nn.Conv3d(inputs, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU()]
        parts += [nn.MaxPool3d(2 if 0 < level < 4 else (1, 2, 2))]
        inputs = outputs
    return nn.Sequential(*parts, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(inputs, 400))
