"""Active and idle GPU time of a PyTorch training loop, from CUDA events.

[Xonar] needs to know for how long an iteration keeps the GPU busy and for how long it leaves it
alone (loading data, talking to others). An event is recorded in the GPU's own stream at the first
forward pass after a step, and another at the step itself. Between the two the iteration's kernels
run; from a step to the next forward pass the GPU waits. The CPU never waits for the GPU here.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

log = logging.getLogger(__name__)

_CONTEXT_MIB = 1024


@dataclass(slots=True)
class Profile:
    """Readings so far; all zero without PyTorch or CUDA."""

    iterations: int = 0
    active_s: float = 0.0
    idle_s: float = 0.0
    peak_memory_bytes: int = 0

    def annotations(self) -> dict[str, str]:
        """Return the annotations by which the next run of the job is predicted as it was seen.

        The allocator's peak has no CUDA context in it; a GiB is added for that. Empty without an
        iteration.
        """
        seconds = self.active_s + self.idle_s
        if not self.iterations or not seconds:
            return {}
        return {
            "tandem.gpu/framework": "pytorch",
            "tandem.gpu/memory": f"{-(-self.peak_memory_bytes // 2**20) + _CONTEXT_MIB}Mi",
            "tandem.gpu/utilization": f"{100 * self.active_s / seconds:.0f}",
        }


# Paper: [Xonar] III-A | active and idle time of each iteration, measured in the job | test:
#   tests/node_agent/test_cuda_profile.py
#   test_active_and_idle_time_of_iterations_that_wait_for_data | live: yes | deviation: CUDA
#   events around an iteration's kernels instead of clocks in TensorFlow; a job that has
#   `tandem.progress.profile` alone is measured so
@contextmanager
def recording(
    listeners: list[Callable[[], None]], profiles: list[Profile] | None = None
) -> Iterator[Profile]:
    """Record until the end of the block; `listeners` are called at each step of the job.

    The profile is filled as iterations end, and logged as JSON in the end, with the annotations
    that follow from it. It is put into `profiles`, from which it is sent to the agent.
    """
    profile = Profile()
    if profiles is not None:
        profiles.append(profile)
    torch = _torch()
    if torch is None:
        yield profile
        return
    events = _Events(torch, profile)
    torch.cuda.reset_peak_memory_stats()
    hook = torch.nn.modules.module.register_module_forward_pre_hook(events.forward)
    listeners.append(events.step)
    try:
        yield profile
    finally:
        listeners.remove(events.step)
        hook.remove()
        torch.cuda.synchronize()
        events.drain()
        profile.peak_memory_bytes = int(torch.cuda.max_memory_reserved())
        log.info("profile %s", json.dumps(asdict(profile)))
        log.info("annotations %s", json.dumps(profile.annotations()))


def _torch() -> Any:  # noqa: ANN401 - PyTorch, which is no dependency
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


class _Events:
    """The events of the iterations that the GPU has not finished yet."""

    def __init__(self, torch: Any, profile: Profile) -> None:  # noqa: ANN401 - as above
        self._torch = torch
        self._profile = profile
        self._begin: Any = None
        self._last_end: Any = None
        self._pending: deque[tuple[Any, Any, Any]] = deque()

    def forward(self, *_: object) -> None:
        """Note the first forward pass of an iteration."""
        if self._begin is None:
            self._begin = self._record()

    def step(self) -> None:
        """Note the end of an iteration; one without a forward pass goes on."""
        if self._begin is None:
            return
        end = self._record()
        self._pending.append((self._last_end, self._begin, end))
        self._begin, self._last_end = None, end
        self.drain()

    def drain(self) -> None:
        """Take the iterations that the GPU has finished. The first is warm-up, and left out."""
        while self._pending and self._pending[0][2].query():
            last_end, begin, end = self._pending.popleft()
            if last_end is not None:
                self._profile.iterations += 1
                self._profile.idle_s += last_end.elapsed_time(begin) / 1000
                self._profile.active_s += begin.elapsed_time(end) / 1000

    def _record(self) -> Any:  # noqa: ANN401 - as above
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event
