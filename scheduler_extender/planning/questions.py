"""Input and result of one cycle: frozen, passed between the two threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.cluster.nodes import NodesPicture
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import Key
from tandem.policy.cluster import Snapshot
from tandem.policy.decision import Placement
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.topology import Topology
from tandem.policy.units import Bools
from tandem.reasons.causes import Cause


@dataclass(frozen=True, slots=True)
class Part:
    """The pods of one role of a start: they ask for the same and declare the same."""

    role: str  # '' where its workload has no name for it
    job: Job  # with as many pods as `pods`
    pods: tuple[PodInfo, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Pods of one GPUJob that start together: a gang, or one replacement.

    `job`, `pods` and `role` are those of one role, `others` the other roles, if it has any: they
    start with it or not at all.
    """

    gpujob: Key
    job: Job  # with as many pods as `pods`
    pods: tuple[PodInfo, ...]
    role: str = ""
    others: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All roles, those that are hardest to place first."""
        return (Part(self.role, self.job, self.pods), *self.others)

    @property
    def gpus(self) -> int:
        """GPUs that all its pods take."""
        return self.job.gpus + sum(part.job.gpus for part in self.others)

    @property
    def all_pods(self) -> tuple[PodInfo, ...]:
        """The pods of all roles, role by role."""
        return self.pods + tuple(pod for part in self.others for pod in part.pods)


@dataclass(frozen=True, slots=True)
class Victim:
    """A running gang that may have to give way: what it has had, what its preemption costs."""

    service_gpu_s: float
    charge_gpu_s: float


@dataclass(frozen=True, slots=True)
class Shrinks:
    """An elastic gang, all of whose pods but those of `uids` go on: its workload asks for `pods`.

    They give up `gpus`, for `to`.
    """

    gang: Key
    pods: int
    uids: frozenset[str]
    gpus: int
    to: Key = ("", "")


@dataclass(frozen=True, slots=True)
class Avoids:
    """Where a gang is not put again: nodes that refused it, gangs that it got in the way of."""

    nodes: frozenset[str] = frozenset()
    neighbours: frozenset[Key] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that one round decides on.

    `arrays` has the state of each gang, `row_of` each one's row there, `rank` gives them in order.
    `eligible` is (nodes,) by `Job.where`, where the pods could run now; `capable` returns the same
    for one `Job.where` as if nothing else ran. `nodes` has what both are made of. `endless` are the
    running gangs that have no end of their own, such as services. `claims` has the holders by pod
    uid, `going` the uids of those that are giving up their GPUs, `victims` gangs that may be asked:
    empty where jobs do not compete anew. `targets` has the GPUs (node, UUID) on which gangs that
    are being moved start again. `elastic` has of victims how small they may become, each step with
    more pods that go. `growing` are elastic gangs that run, and want pods beyond those that they
    need; `joining` are gangs whose pods start one by one, each on a GPU that no other pod of
    the gang has. `by_work_left`: the order compares the work that jobs have left,
    not their service.
    """

    rank: Callable[[], list[Key]]
    starts: Mapping[Key, Sequence[Start]]
    snapshot: Snapshot
    eligible: Mapping[int, Bools]
    arrays: JobArrays
    row_of: Mapping[Key, int]
    claims: Mapping[str, Claim] = field(default_factory=dict)
    going: frozenset[str] = frozenset()
    victims: Mapping[Key, Victim] = field(default_factory=dict)
    elastic: Mapping[Key, Sequence[Shrinks]] = field(default_factory=dict)
    growing: frozenset[Key] = frozenset()
    joining: frozenset[Key] = frozenset()
    where_of: Mapping[Key, int] = field(default_factory=dict)
    avoids: Mapping[Key, Avoids] = field(default_factory=dict)
    targets: Mapping[Key, frozenset[tuple[str, str]]] = field(default_factory=dict)
    front: frozenset[Key] = frozenset()
    endless: frozenset[Key] = frozenset()
    history: History = field(default_factory=History)
    now_s: float = 0.0
    needs_remaining: bool = False
    by_work_left: bool = False
    capable: Callable[[int], Bools | None] = lambda _: None  # None: everywhere
    nodes: NodesPicture | None = None  # None: nothing but GPUs is asked for

    @property
    def topology(self) -> Topology | None:
        """The domains of the nodes; None where there are no levels."""
        return None if self.nodes is None else self.nodes.topology


@dataclass(frozen=True, slots=True)
class Verdict:
    """A start that has its place, in `steps` micro-batches."""

    start: Start
    decision: Placement
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """A start that waits; `position` counts from 0, `causes` are there where the round has any.

    `coming`: it has its place, and waits only until others have left it.
    """

    start: Start
    position: int
    causes: tuple[Cause, ...] = ()
    coming: bool = False


class WaitingStarts(Sequence[Waiting]):
    """The starts that wait, in order.

    Nothing is said of most of them, and a queue has thousands: a `Waiting` is made when it is read.
    """

    def __init__(self) -> None:
        self.starts: list[Start] = []
        # By position: why it waits, and whether its place is coming.
        self._said: dict[int, tuple[tuple[Cause, ...], bool]] = {}

    def add(self, start: Start, *causes: Cause, coming: bool = False) -> None:
        """Add a start behind all others."""
        if causes or coming:
            self._said[len(self.starts)] = causes, coming
        self.starts.append(start)

    def say(self, position: int, *causes: Cause, coming: bool) -> None:
        """Replace what is said of the start at `position`."""
        self._said[position] = causes, coming

    def coming(self) -> list[Start]:
        """Return those that wait only until others have left their place."""
        return [self.starts[at] for at, (_, coming) in sorted(self._said.items()) if coming]

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, position: int) -> Waiting: ...
    @overload
    def __getitem__(self, position: slice) -> list[Waiting]: ...
    def __getitem__(self, position: int | slice) -> Waiting | list[Waiting]:
        if isinstance(position, slice):
            return [self[at] for at in range(*position.indices(len(self)))]
        position = range(len(self.starts))[position]
        causes, coming = self._said.get(position, ((), False))
        return Waiting(self.starts[position], position, causes, coming)


@dataclass(frozen=True, slots=True)
class GivesWay:
    """A running gang gives up its GPUs: for a waiting one, or (`to` is its own) for better ones.

    `too_slow`: its neighbours slow it down more than the profile allows.
    """

    victim: Key
    to: Key
    too_slow: bool = False


@dataclass(slots=True)
class Answer:
    """The result of a cycle. `explain` returns why a start waits, as of its end.

    It holds the board of the round until `forget_board`.
    """

    explain: Callable[[Waiting], tuple[Cause, ...]]
    placed: list[Verdict] = field(default_factory=list)
    waiting: WaitingStarts = field(default_factory=WaitingStarts)
    gives_way: list[GivesWay] = field(default_factory=list)
    shrinks: list[Shrinks] = field(default_factory=list)

    def forget_board(self) -> None:
        """Free the board; why a start waits cannot be asked any more."""
        self.explain = _unexplained


def _unexplained(waiting: Waiting) -> tuple[Cause, ...]:
    raise RuntimeError(f"the board is gone on which {waiting.start.gpujob} was tried")
