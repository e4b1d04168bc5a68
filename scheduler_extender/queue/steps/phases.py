"""The state machine of a GPUJob: its phases, each transition, and the action of each stage.

`lifecycle.py` computes each new status as a pure function; `TRANSITIONS` names the function of each
change of phase. `stage_of` says, from the gang alone, which step of the controller is due. The
tables of docs/queueing.md are printed by `python -m scheduler_extender.queue.steps.phases`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.workloads import above, workload_of
from scheduler_extender.queue.steps import lifecycle
from tandem.contracts.resources import GPUJobStatus, Phase

OPEN = (Phase.QUEUED, Phase.ADMITTED, Phase.RUNNING, Phase.PREEMPTING, Phase.SUSPENDED)
CLOSED = (Phase.COMPLETED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of phase: from each of `of` to `to`, with `reason` in the status.

    `function` returns the new status; `of` is empty for a GPUJob that has just been created.
    """

    of: tuple[Phase, ...]
    to: Phase
    when: str
    reason: str
    function: Callable[..., GPUJobStatus]


TRANSITIONS: tuple[Transition, ...] = (
    Transition(
        (),
        Phase.QUEUED,
        "The GPUJob is new, and its load is predicted.",
        "Queued",
        lifecycle.queued,
    ),
    Transition(
        (Phase.QUEUED, Phase.SUSPENDED, Phase.ADMITTED),
        Phase.ADMITTED,
        "A cycle found GPUs for every pod that must start together. The plan has a deadline.",
        "Planned",
        lifecycle.with_plan,
    ),
    Transition(
        (Phase.QUEUED, Phase.SUSPENDED, Phase.ADMITTED),
        Phase.RUNNING,
        "As many pods run as must start together.",
        "Running",
        lifecycle.observed,
    ),
    Transition(
        (Phase.ADMITTED,),
        Phase.QUEUED,
        "The plan's deadline passed, and no pod was bound.",
        "PlanExpired",
        lifecycle.observed,
    ),
    Transition(
        (Phase.ADMITTED, Phase.RUNNING),
        Phase.QUEUED,
        "No pod holds GPUs any more, and the workload has not ended.",
        "PodsGone",
        lifecycle.observed,
    ),
    Transition(
        (Phase.ADMITTED,),
        Phase.QUEUED,
        "Some pods that start alone have a plan, and others found no GPUs.",
        "Waiting",
        lifecycle.waiting,
    ),
    Transition(
        (Phase.QUEUED, Phase.ADMITTED, Phase.SUSPENDED, Phase.RUNNING),
        Phase.PREEMPTING,
        "The gang must give up its GPUs: preemption, a move, or a start that stayed incomplete.",
        "Preempting",
        lifecycle.preempting,
    ),
    Transition(
        (Phase.ADMITTED,),
        Phase.PREEMPTING,
        "The containers of its pods did not start in time. Its GPUs are released.",
        "NeverStarted",
        lifecycle.never_started,
    ),
    Transition(
        (Phase.PREEMPTING,),
        Phase.QUEUED,
        "Its pods, whose containers did not start, are gone. It rests before it is placed again.",
        "NeverStarted",
        lifecycle.rested,
    ),
    Transition(
        (Phase.PREEMPTING,),
        Phase.SUSPENDED,
        "All its pods are gone. The job keeps its attained service.",
        "Preempted",
        lifecycle.suspended,
    ),
    Transition(
        OPEN,
        Phase.COMPLETED,
        "The workload has completed.",
        "Completed",
        lifecycle.ended,
    ),
    Transition(
        OPEN,
        Phase.FAILED,
        "The workload has failed.",
        "Failed",
        lifecycle.ended,
    ),
    Transition(
        CLOSED,
        Phase.QUEUED,
        "The workload has pods again, as that of a CronJob.",
        "NewPods",
        lifecycle.revived,
    ),
)


class Stage(Enum):
    """The next step of a gang; the value says when a gang is at this stage, and what is done.

    The order is that of the test: the first stage that applies is the gang's.
    """

    GONE = "it has neither GPUJob nor live pods", "nothing"
    NEW = "it has live pods and no GPUJob", "create the GPUJob and predict its load"
    REPLACED = "its workload was replaced by another of the same name", "delete the GPUJob"
    REVIVED = "its GPUJob is closed, and it has live pods", "put it back into the queue"
    CLOSED = "its GPUJob is closed", "keep its service in the history"
    UNPREDICTED = "its load is not predicted yet", "predict the load and put it into the queue"
    PREEMPTING = "it is giving up its GPUs", "suspend or evict; when its pods are gone: Suspended"
    ENDING = "its pods have ended or are gone", "read the workload: close the GPUJob, or wait on"
    OPEN = (
        "none of these",
        "follow its pods: size, prediction, phase, service; open gates; place what waits",
    )


def stage_of(gang: Gang) -> Stage:
    """Return the stage of a gang, from its GPUJob and its pods alone."""
    record = gang.record
    if record is None:
        return Stage.NEW if gang.is_live else Stage.GONE
    if gang.is_live and is_replaced(record, gang):
        return Stage.REPLACED
    if record.status.phase in CLOSED:
        return Stage.REVIVED if gang.is_live else Stage.CLOSED
    if record.status.queued_at is None:
        return Stage.UNPREDICTED
    if record.status.phase is Phase.PREEMPTING:
        return Stage.PREEMPTING
    if not gang.is_live and gang.finished == len(gang.pods):
        return Stage.ENDING
    return Stage.OPEN


def is_replaced(record: GpuJobRecord, gang: Gang) -> bool:
    """Return True where the workload was replaced by another of the same name.

    A pod on a node belonged to the workload before it got there, whatever owner it has now.
    """
    pod = gang.first()
    if record.spans_workloads or pod.node_name or above(pod) is not None:
        return False
    return workload_of(pod).uid != record.spec.workload.uid


def tables() -> str:
    """Return the two tables of docs/queueing.md, in Markdown."""
    rows = [
        "| from | to | when | reason | function |",
        "|---|---|---|---|---|",
        *(
            f"| {', '.join(each.of) or '(new)'} | {each.to} | {each.when} | `{each.reason}` |"
            f" `lifecycle.{each.function.__name__}` |"
            for each in TRANSITIONS
        ),
        "",
        "| stage | a gang is there when | what the controller does |",
        "|---|---|---|",
        *(f"| {stage.name.lower()} | {stage.value[0]} | {stage.value[1]} |" for stage in Stage),
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(tables())
