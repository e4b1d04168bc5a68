"""The limit of a job's memory from run to run, while it runs out of memory at each."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from queue_builders import GIB, load, pod

from scheduler_extender.queue.pods.memory_needs import _beyond_limit, raised
from tandem.contracts.limits import GROWTH, limit_annotations, parse_memory_fraction
from tandem.contracts.names import MEMORY_FRACTION
from tandem.contracts.resources import GPU


def gpu(total_gib: float, held_gib: float, uid: str) -> GPU:
    use: dict[str, Any] = {"uid": uid, "memoryPeakBytes": int(held_gib * GIB)}
    size = int(total_gib * GIB)
    return GPU.model_validate(
        {"index": 0, "model": "H100", "uuid": "GPU-a", "memoryBytes": size, "pods": [use]}
    )


@given(st.floats(0.1, 200), st.sampled_from((16, 24, 40, 80, 141, 192)), st.floats(0, 1))
def test_a_job_that_runs_out_of_memory_at_its_limit_gets_more_until_it_has_all_of_the_gpu(
    peak_gib: float, total_gib: int, held: float
) -> None:
    need = load(base_gib=min(peak_gib, total_gib))
    limits: list[float] = []
    while not limits or limits[-1] < 1:
        notes = limit_annotations(need.memory_p95_bytes / GIB, total_gib)
        fraction = parse_memory_fraction(notes[MEMORY_FRACTION])
        assert fraction is not None
        assert not limits or fraction == 1 or fraction >= limits[-1] * GROWTH
        limits.append(fraction)
        assert len(limits) < 25, "each run gets half as much again, at the least"
        bound = pod("p", annotations=notes)
        seen = gpu(total_gib, held * fraction * total_gib, bound.uid)
        need = raised(need, _beyond_limit(bound, seen), total_gib * GIB)


def test_a_job_that_held_far_more_than_its_limit_does_not_keep_to_it() -> None:
    notes = limit_annotations(10, 80)
    bound = pod("p", annotations=notes)
    within, beyond = gpu(80, 11.9, bound.uid), gpu(80, 12.5, bound.uid)
    assert _beyond_limit(bound, within) == int(0.1375 * GROWTH * 80 * GIB)
    assert _beyond_limit(bound, beyond) == 80 * GIB, "all that it could have had"
    assert _beyond_limit(pod("q"), within) == 80 * GIB, "it has no limit"
