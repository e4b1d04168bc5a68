"""`/v1/explain` gives one version of each reason: what is seen now, or what a cycle has found."""

from __future__ import annotations

import pytest
from extender_builders import gpu_job, gpu_node, load, pod

from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.planning.explaining import constraints
from scheduler_extender.serving.api import explanation, up_to_date
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import Snapshot
from tandem.policy.job import Job
from tandem.reasons.causes import Cause, Reason

NEEDS = Cause(Reason.NEEDS_GPUS, amount="1 GPU", value=0, bound=1)
FREE = Cause(Reason.NEEDS_GPUS, amount="1 GPU", value=1, bound=1)
THEN = Cause(Reason.MEMORY, gpus=1, value=17.4, bound=15.6)
NOW = Cause(Reason.PLACES_TAKEN, gpus=1, value=2, bound=2)
BEHIND, PROTECTED = Cause(Reason.BEHIND, job="a/b"), Cause(Reason.NOT_PREEMPTED, detail="budget")


def test_a_place_beyond_a_bound_shows_no_figures_that_speak_against_it() -> None:
    """The chance of a collision is over its bound and does not count: all peaks fit together."""
    pipeline = load_profile("tandem").pipeline()
    job = Job(id="j", memory_base_gib=10, memory_peak_extra_gib=5, peak_probability=0.5)
    gpus = Snapshot.from_rows([("n0", "a", 80)]).gpus.with_job(job, [0])
    shown = {each["topic"]: each for each in constraints(pipeline, job, gpus, 0)}
    assert shown["Two peaks at once"]["allows"]
    assert shown["Two peaks at once"]["says"] == ""
    assert shown["Memory peaks"]["says"] == "30.0 GiB needed, 80.0 GiB there"


@pytest.mark.parametrize(
    ("said", "found", "expected"),
    [
        ((NEEDS, THEN), (NEEDS, NOW), (NEEDS, NOW)),
        ((NEEDS, THEN, PROTECTED), (NEEDS, NOW), (NEEDS, NOW, PROTECTED)),
        ((NEEDS, THEN), (FREE,), (Cause(Reason.PLACE_FREE),)),
        ((BEHIND,), (NEEDS, NOW), (BEHIND,)),
        ((), (NEEDS, NOW), ()),
    ],
)
def test_what_is_seen_now_replaces_what_was_said_of_it(
    said: tuple[Cause, ...], found: tuple[Cause, ...], expected: tuple[Cause, ...]
) -> None:
    assert up_to_date(said, found) == expected


def test_an_explanation_has_the_reason_of_its_table_and_not_the_one_of_the_status() -> None:
    state = ClusterState(now_s=1_800_000_000.0)
    state.upsert("gpunodes", gpu_node("n0", "GPU-0", observed_at_s=state.now_s))
    waits = gpu_job("pod-new", namespace="ml", job_load=load(100))
    waits["status"] |= {
        "phase": "Queued",
        "queuedAt": "2026-01-01T00:00:00Z",
        "message": "of an earlier cycle",
        "causes": [NEEDS.wire(), NOW.wire()],
        "foundAt": "2027-01-15T07:56:40Z",
    }
    state.upsert("gpujobs", waits)
    made = pod("new", namespace="ml")
    state.upsert("pods", made)
    record = state.pod_named("ml", "new")
    assert record is not None
    shown = explanation(state, load_profile("tandem").pipeline(), record)
    assert {each["reason"] for each in shown["causes"]} == {"NeedsGPUs", "NodeUnsuitable"}
    assert "places" not in shown["message"]
    assert "earlier cycle" not in shown["message"]
    assert shown["foundAt"] == "2027-01-15T08:00:00.000000Z", "they are of now, and so is the time"
