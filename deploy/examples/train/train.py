"""Train a small network on the CPU, stop on SIGTERM with the state saved, and go on from there.

What a job does to run well under Tandem, in one file to copy from:

- `tandem.progress.step()` once an iteration reports how fast the job is;
- TANDEM_ACCUMULATION_STEPS says in how many parts a batch is computed, so that it needs less
  memory; the gradient is that of the whole batch;
- on SIGTERM the iteration that runs is finished and the state is saved before the process ends,
  and the next run of the same job goes on with the next iteration. The state holds everything
  that the result depends on, so that an interrupted run ends with the same bits as another.

The last line on stdout is a JSON object: iterations, the loss of every tenth one, and a digest of
the parameters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import progress  # a copy of tandem/progress.py
import simulated_gpu  # only where there is no GPU: leave it out

FEATURES, HIDDEN, SEED = 32, 64, 7
#: What a job that is stopped ends with, like any program that SIGTERM ends.
STOPPED = 128 + signal.SIGTERM


class State:
    """Parameters, momentum, the number of the next iteration, and the losses so far."""

    def __init__(self) -> None:
        random = np.random.default_rng(SEED)
        self.arrays = {
            "w1": random.normal(0, FEATURES**-0.5, (FEATURES, HIDDEN)),
            "w2": random.normal(0, HIDDEN**-0.5, (HIDDEN, 1)),
        }
        self.arrays |= {f"m_{name}": np.zeros_like(a) for name, a in self.arrays.items()}
        self.iteration = 0
        self.losses: list[float] = []

    def save(self, path: Path) -> None:
        """Write the state at once or not at all: a node may fail at any moment."""
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            np.savez(file, iteration=self.iteration, losses=self.losses, **self.arrays)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def load(self, path: Path) -> None:
        """Take over what an earlier run has saved."""
        with np.load(path) as saved:
            self.arrays = {name: saved[name] for name in self.arrays}
            self.iteration = int(saved["iteration"])
            self.losses = [float(loss) for loss in saved["losses"]]

    def digest(self) -> str:
        """Return a digest of every parameter's bits."""
        parts = (self.arrays[name].tobytes() for name in sorted(self.arrays))
        return hashlib.sha256(b"".join(parts)).hexdigest()


def batch(iteration: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples of an iteration; they depend on its number alone."""
    random = np.random.default_rng([SEED, iteration])
    inputs = random.normal(size=(size, FEATURES))
    return inputs, np.sin(inputs[:, :3].sum(axis=1, keepdims=True))


def iterate(state: State, size: int, parts: int) -> float:
    """Do one iteration with a batch of `size` computed in `parts`; return its mean loss."""
    w1, w2 = state.arrays["w1"], state.arrays["w2"]
    gradients = {"w1": np.zeros_like(w1), "w2": np.zeros_like(w2)}
    loss = 0.0
    inputs, targets = batch(state.iteration, size)
    pieces = zip(np.array_split(inputs, parts), np.array_split(targets, parts), strict=True)
    for x, y in pieces:
        hidden = np.tanh(x @ w1)
        error = hidden @ w2 - y
        loss += float((error**2).sum())
        gradients["w2"] += hidden.T @ error
        gradients["w1"] += x.T @ ((error @ w2.T) * (1 - hidden**2))
    for name, gradient in gradients.items():
        momentum = state.arrays[f"m_{name}"]
        momentum *= 0.9
        momentum += gradient * (2 / size)
        state.arrays[name] -= 0.05 * momentum
    state.iteration += 1
    return loss / size


def main() -> int:
    """Train until the iterations are done or SIGTERM comes; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.1, help="time of an iteration, at least")
    parser.add_argument("--checkpoints", type=Path, help="folder of the state; none: do not save")
    parser.add_argument("--gpu-memory-gib", type=float, default=8.0, help="on the simulated GPU")
    parser.add_argument("--gpu-percent", type=int, default=40, help="of the simulated GPU's time")
    parser.add_argument("--grow-at", type=int, default=-1, help="iteration at which memory grows")
    parser.add_argument("--grow-to-gib", type=float, default=0.0, help="to this")
    args = parser.parse_args()

    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    parts = int(os.environ.get("TANDEM_ACCUMULATION_STEPS") or 1)
    gpu = simulated_gpu.connect()
    state, path = State(), None
    if args.checkpoints:
        args.checkpoints.mkdir(parents=True, exist_ok=True)
        path = args.checkpoints / "state.npz"
        if path.exists():
            state.load(path)
    print(json.dumps({"begins_at": state.iteration, "parts": parts}), flush=True)
    memory_gib = None
    while state.iteration < args.iterations and not stopping:
        began = time.monotonic()
        grown = 0 <= args.grow_at <= state.iteration
        wanted = args.grow_to_gib if grown else args.gpu_memory_gib / parts
        if wanted != memory_gib:
            gpu.use(memory_gib=wanted, percent=args.gpu_percent)
            memory_gib = wanted
        loss = iterate(state, args.batch_size, parts)
        if state.iteration % 10 == 0:
            state.losses.append(loss)
        progress.step()
        time.sleep(max(0.0, args.seconds - (time.monotonic() - began)))
    if path:
        state.save(path)
    result = {"iterations": state.iteration, "losses": state.losses, "digest": state.digest()}
    print(json.dumps(result), flush=True)
    return STOPPED if state.iteration < args.iterations else 0


if __name__ == "__main__":
    sys.exit(main())
