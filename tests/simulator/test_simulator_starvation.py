"""A stream of newcomers cannot keep a job from its end, nor a gang from its start."""

from __future__ import annotations

import pytest
from simulator_builders import run_shared, trace

from tandem.policy.catalog import Profile, load_profile
from tandem.simulator.jobs import TraceJob

NOTHING = [[1.0]]  # two together are as fast as one after the other
SHARE = 1 / 4  # of the cluster, for turns: the shipped 1/100 makes the same test 25 times as long
LASTS_S = 40_000


def profile(name: str, turn_share: float | None, **changes: float) -> Profile:
    shipped = load_profile(name)
    assert shipped.dispatch.kind == "share"
    dispatch = shipped.dispatch.model_copy(update={"turn_share": turn_share, **changes})
    return shipped.model_copy(update={"dispatch": dispatch})


def stream(every_s: float) -> list[TraceJob]:
    """A job of one GPU and 300 s, again and again: on four GPUs too many from 75 s down."""
    return trace(*((i * every_s, 1, 300) for i in range(int(LASTS_S / every_s))))


def ends_at(
    victim: tuple[float, int, float],
    name: str,
    turn_share: float | None,
    *,
    every_s: float = 60.0,
    **changes: float,
) -> float:
    """When the job ends that has the stream against it: (submission, GPUs, duration)."""
    jobs = [*trace(victim), *(TraceJob("s" + job.id, *_of(job)) for job in stream(every_s))]
    used = profile(name, turn_share, **changes)
    found = run_shared(jobs, "1x4", used, NOTHING, [0] * len(jobs))
    return float(found.end_s[0])


def _of(job: TraceJob) -> tuple[float, int, float]:
    return job.submit_s, job.gpus, job.duration_s


@pytest.mark.parametrize("name", ["tandem", "tandem-guarded"])
@pytest.mark.parametrize("victim", [(3030.0, 4, 2000.0), (0.0, 1, 3000.0)], ids=["gang", "long"])
def test_a_job_ends_within_the_stated_bound_under_a_stream_of_short_jobs(
    name: str, victim: tuple[float, int, float]
) -> None:
    submit_s, _, duration_s = victim
    dispatch = load_profile(name).dispatch
    assert dispatch.kind == "share"
    first_turn_s = 20 * (dispatch.move_cost_s or 0.0) / SHARE
    bound_s = first_turn_s + duration_s + 2 * duration_s / SHARE
    assert submit_s + bound_s < LASTS_S
    # The next look after a turn is due comes with the next job of the stream.
    assert ends_at(victim, name, SHARE) <= submit_s + bound_s + 60


def test_without_turns_a_gang_of_all_gpus_waits_for_the_end_of_the_stream() -> None:
    """So the stream is one that starves: the test above could fail."""
    assert ends_at((3030.0, 4, 2000.0), "tandem", None) > LASTS_S


@pytest.mark.parametrize("name", ["tandem", "tandem-guarded"])
def test_a_short_gang_of_all_gpus_need_not_wait_until_the_cluster_is_nearly_idle(name: str) -> None:
    """The stream takes 0.6 of the GPUs, so two or three jobs are always in the gang's way."""
    gang = (3030.0, 4, 300.0)
    assert ends_at(gang, name, None, every_s=125.0, gang_weight=0.0, aging=0.5) > 30_000
    assert ends_at(gang, name, None, every_s=125.0) < 12_000


@pytest.mark.parametrize("name", ["tandem", "tandem-guarded"])
def test_the_shipped_profiles_have_turns(name: str) -> None:
    dispatch = load_profile(name).dispatch
    assert dispatch.kind == "share"
    assert dispatch.turn_share is not None
    assert dispatch.preempt_factor is not None
