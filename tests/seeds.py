"""The seed of a run: the environment's TANDEM_SEED, or a new one, printed at the end of the run.

Every test whose input is random draws it from here, so that TANDEM_SEED repeats the run. The
environment carries the seed to the workers of pytest-xdist: they must agree on the tests there are.
"""

from __future__ import annotations

import hashlib
import os
import random

SEED = os.environ.setdefault("TANDEM_SEED", str(random.SystemRandom().randrange(10**6)))


def seed_for(name: str) -> int:
    """Return the seed in [0, 2**32) of one test: it follows from the run's seed and `name`."""
    return int.from_bytes(hashlib.sha256(f"{SEED} {name}".encode()).digest()[:4])


def without_group(test: str) -> str:
    """Return a node id without the group that pytest-xdist writes at its end (`...[x]@group`)."""
    at = test.rfind("@")
    return test[:at] if at > max(test.rfind("]"), test.rfind("::")) else test
