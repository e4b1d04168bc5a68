"""The kinds of policy. Each is a frozen pydantic model whose fields are its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import ConfigDict

from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import Demands
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.units import Bools, Floats, Ints
from tandem.reasons.causes import Cause
from tandem.settings import NoFlagForNumber

if TYPE_CHECKING:
    from tandem.policy.board import Board


class Policy(NoFlagForNumber):
    """Base of all policies: frozen, unknown parameters refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: Of a constraint: its cause has a value and a bound, and is shown where it allows, too.
    has_figures: ClassVar[bool] = False

    def compiled(self) -> Mapping[str, float] | None:
        """Of a constraint or scorer: its counterpart in a compiled cycle; None: it has none."""
        return None

    def reasons(self, job: Job, gpus: GpuArrays) -> Ints | None:
        """Of a constraint: which of its reasons `cause` gives; None: there is only one."""
        return None


class Dispatch(Policy):
    """Base of the dispatches: what the caller of one must know of it, apart from its parameters."""

    #: Running jobs compete with waiting ones; False: running jobs keep their GPUs.
    preempts: ClassVar[bool] = False
    #: The dispatch starts and stops jobs by their order alone. The cluster, where a preemption has
    #: a cost, weighs that cost itself.
    ignores_preemption_cost: ClassVar[bool] = False
    #: The dispatch tries jobs by their worth, and weighs the slowdown of pairs against it.
    weighs_pairs: ClassVar[bool] = False
    #: The dispatch compares the remaining times of jobs, so that they must be known.
    needs_remaining: ClassVar[bool] = False

    @property
    def least_speed(self) -> float:
        """The part of its speed that each job of a pair keeps at least, in [0, 1]."""
        return 0.0

    def in_order(self, board: Board, ranked: Ints) -> Ints:
        """Return the jobs `ranked` in the order in which they were tried on the board."""
        return ranked


class OrderState(Protocol):
    """An order's memory of the jobs in the system, where running jobs compete with waiting ones.

    Jobs are named by their row in `JobArrays`.
    """

    def add(self, row: int, level_service_gpu_s: float) -> None:
        """Take in a job that arrived."""
        ...

    def remove(self, row: int) -> None:
        """Forget a job that ended."""
        ...

    def cross(self, row: int, level_service_gpu_s: float) -> None:
        """Note that a job's priority service has come to a threshold."""
        ...

    def promote(self, row: int, running: Bools) -> None:
        """Note that a job starved and its priority service was reset; `running` is (jobs,)."""
        ...

    def rank(self, jobs: JobArrays, now_s: float, history: History) -> Ints:
        """Return all jobs in the order in which they are tried."""
        ...

    def settle(self, running: Bools, turned: AbstractSet[int] | None = None) -> None:
        """Note which jobs run after a round, (jobs,).

        `turned` has the jobs that have started or stopped since the last time; None: not known.
        """
        ...

    @property
    def queues(self) -> tuple[Ints, ...]:
        """The jobs of each queue in their order, queue 0 first; none where keys alone order."""
        ...

    def restore(self, rows: Ints, level_service_gpu_s: Floats, promoted: Iterable[int]) -> None:
        """Replace the queues: `rows` in their order, (jobs,), with the service of each.

        `promoted` are the rows that were promoted and have not started since.
        """
        ...


class Constraint(Protocol):
    """Says on which GPUs a job may go. One mask a constraint; the first False is the reason."""

    @property
    def kind(self) -> str:
        """Name in configuration, reasons and metrics."""
        ...

    @property
    def has_figures(self) -> bool:
        """True where `cause` has a value and a bound, so that they are shown where it allows."""
        ...

    def __call__(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where one worker of `job` may be added."""
        ...

    def each(self, jobs: Demands, gpus: GpuArrays) -> Bools | None:
        """Return the same for many jobs, (jobs, gpus) or (gpus,); None: one job at a time only."""
        ...

    def compiled(self) -> Mapping[str, float] | None:
        """Return the fields of a compiled cycle that stand for this constraint; None: none do."""
        ...

    def cause(self, job: Job, gpus: GpuArrays, row: int) -> Cause:
        """Return why `row` may not take `job`: the reason, with value and bound where it has any.

        Where it may: what the status says of the GPU nevertheless.
        """
        ...

    def reasons(self, job: Job, gpus: GpuArrays) -> Ints | None:
        """Return (gpus,) which of its reasons `cause` gives for each, from 0 on.

        Equal where the reason is the same; None where there is only one.
        """
        ...


class Gather(Protocol):
    """Says which of the allowed GPUs the workers of a gang take together."""

    def __call__(self, job: Job, gpus: GpuArrays, allowed: Bools, score: Floats) -> Ints | None:
        """Return as many rows as `job` has GPUs, or None if there is no place for all."""
        ...


class Scorer(Protocol):
    """Says how good a GPU is for a job."""

    @property
    def kind(self) -> str:
        """Name in configuration."""
        ...

    @property
    def weight(self) -> float:
        """Weight among the scorers."""
        ...

    def __call__(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,) in [0, 1], higher is better."""
        ...

    def compiled(self) -> Mapping[str, float] | None:
        """Return the fields of a compiled cycle that stand for this scorer; None: none do."""
        ...
