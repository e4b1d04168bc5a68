"""Architectures for vectors, fields, points, nodes and frames."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def multilayer(
    width: int = 1024, depth: int = 6, inputs: int = 784, classes: int = 10
) -> nn.Module:
    """Return a multilayer perceptron on vectors."""
    parts: list[nn.Module] = []
    for layer in range(depth):
        parts += [nn.Linear(width if layer else inputs, width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, classes))


class Recommender(nn.Module):
    """DLRM's kind: embeddings of many fields, their products by pairs, a perceptron.

    Fields are (N, F) integers; `products` off gives neural collaborative filtering.
    """

    def __init__(
        self, fields: int = 26, rows: int = 20000, width: int = 64, hidden: int = 512,
        *, products: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed = nn.Embedding(rows, width)
        self.products = products
        inputs = fields * fields if products else fields * width
        self.top = multilayer(hidden, 3, inputs, 2)

    def forward(self, fields: Tensor) -> Tensor:
        """Return (N, 2)."""
        x = self.embed(fields)
        return self.top((x @ x.transpose(1, 2) if self.products else x).flatten(1))


def items(width: int = 600, count: int = 20108) -> nn.Module:
    """Return an autoencoder of what each user liked, (N, items)."""
    return nn.Sequential(
        nn.Linear(count, width), nn.Tanh(), nn.Linear(width, width // 3), nn.Tanh(),
        nn.Linear(width // 3, width), nn.Tanh(), nn.Linear(width, count),
    )  # fmt: skip


class Points(nn.Module):
    """PointNet: the same perceptron for every point, the strongest answer of all."""

    def __init__(self, width: int = 64, classes: int = 40) -> None:
        super().__init__()
        sizes = [3, width, width, 2 * width, 16 * width]
        self.each = nn.Sequential(
            *(
                nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
                for a, b in pairwise(sizes)
            )
        )
        self.out = multilayer(8 * width, 2, 16 * width, classes)

    def forward(self, points: Tensor) -> Tensor:
        """Return (N, classes)."""
        return self.out(self.each(points).amax(2))


class GraphConvolutions(nn.Module):
    """A graph network on a dense neighbourhood that it learns; nodes are (N, S, 64)."""

    def __init__(self, nodes: int = 128, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.near = nn.Parameter(torch.eye(nodes))
        self.layers = nn.ModuleList(nn.Linear(width if d else 64, width) for d in range(depth))
        self.out = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, S, classes)."""
        for layer in self.layers:
            x = layer(self.near @ x).relu()
        return self.out(x)


class Player(nn.Module):
    """A3C's kind: convolutions over frames (N, 4, 84, 84), a recurrent cell, a policy."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, width), nn.ReLU(),
        )  # fmt: skip
        self.cell = nn.LSTMCell(width, width)
        self.act = nn.Linear(width, 18)

    def forward(self, frames: Tensor) -> Tensor:
        """Return (N, actions)."""
        return self.act(self.cell(self.see(frames))[0])
