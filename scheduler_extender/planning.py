"""One cycle of admission as a pure function: who goes where, who gives way, why others wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_extender.ledger import Claim
from scheduler_extender.pods import PodInfo
from scheduler_extender.records import Key
from scheduler_extender.refusals import Refusals
from scheduler_extender.room import Room
from tandem.policy.cluster import Snapshot
from tandem.policy.decision import Decision, Placement, Waits
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Bools

#: Evaluations of distinct demands in one cycle. What is beyond it has its turn in the next, since
#: refusals are remembered until there is more room.
TRIES = 300
#: Running gangs that are looked at to make room for one that waits.
_CANDIDATES = 64
#: Waiting gangs for which such a look is taken in one cycle.
_PREEMPTORS = 16

Ask = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Pods of one GPUJob that start together: a gang, or one replacement.

    `shape` is what its pods ask of a node, `ask` all that decides where it fits.
    """

    gpujob: Key
    job: Job  # with as many pods as `pods`
    pods: tuple[PodInfo, ...]
    shape: Ask
    ask: Ask

    @classmethod
    def of(cls, gpujob: Key, job: Job, pods: Sequence[PodInfo]) -> Start:
        """Return the start of these pods."""
        pod = pods[0]
        needs = repr((pod.node_selector, pod.tolerations, pod.affinity))
        shape = (pod.cpu, pod.memory_bytes, needs)
        return cls(gpujob, job, tuple(pods), shape, (*job.demand, *shape))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a cycle decided about one start; `position` counts from 0, in the order of trying.

    A refusal may be that of another start with the same demand.
    """

    start: Start
    decision: Decision
    position: int


@dataclass(frozen=True, slots=True)
class Victim:
    """A running gang that may have to give way: its pods, and what it has had."""

    key: Key
    uids: tuple[str, ...]
    service_gpu_s: float
    charge_gpu_s: float  # what its preemption would cost


@dataclass(frozen=True, slots=True)
class GivesWay:
    """A running gang gives up its GPUs for a waiting one."""

    victim: Key
    to: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that one cycle decides on, frozen.

    `rank` gives the gangs in order. Where jobs compete (`competes`), `claims` has the holders by
    pod uid, `going` the uids of those that are giving up their GPUs already, `victims` who may be
    asked to, `service` the priority service of whoever waits.
    """

    rank: Callable[[], list[Key]]
    starts: Mapping[Key, Sequence[Start]]
    snapshot: Snapshot
    eligible: Mapping[Ask, Bools]
    blocks: bool = False
    claims: Mapping[str, Claim] = field(default_factory=dict)
    going: frozenset[str] = frozenset()
    competes: bool = False
    victims: Mapping[Key, Victim] = field(default_factory=dict)
    service: Callable[[Key], float] = lambda _: 0.0


@dataclass(slots=True)
class Answer:
    """What came out of a cycle: starts with a place, starts that wait, gangs that give way."""

    ranked: list[Key]
    placed: list[Verdict] = field(default_factory=list)
    waiting: list[Verdict] = field(default_factory=list)
    gives_way: list[GivesWay] = field(default_factory=list)


def plan_cycle(question: Question, pipeline: Pipeline, refusals: Refusals) -> Answer:
    """Try every start once, in order, each on what those before it have left.

    A start that asks for the same as one that was refused is refused with it: within a cycle the
    cluster only fills up, so a long queue of alike jobs costs one evaluation, and from cycle to
    cycle until there is more room than there was.
    """
    return _Cycle(question, pipeline, refusals).run()


class _Cycle:
    def __init__(self, question: Question, pipeline: Pipeline, refusals: Refusals) -> None:
        self._q = question
        self._pipeline = pipeline
        self._refusals = refusals
        self._now = Room(question.snapshot)
        self._tries = TRIES
        self._later: Room | None = None
        if question.going or question.victims:
            self._later = Room(question.snapshot, question.claims)
            self._later.remove(question.going)
        self._preemptors = _PREEMPTORS
        self._hopeless: set[Ask] = set()
        self._answer = Answer(question.rank())
        self._rank = {key: place for place, key in enumerate(self._answer.ranked)}
        #: Who may give way, the least deserving first.
        self._lesser = [key for key in reversed(self._answer.ranked) if key in question.victims]

    def run(self) -> Answer:
        self._refusals.look(self._q.snapshot, self._q.eligible)
        q, answer = self._q, self._answer
        blocked_by = ""
        position = 0
        for key in answer.ranked:
            for start in q.starts.get(key, ()):
                if blocked_by:
                    decision: Decision = Waits(start.job.id, f"waits behind {blocked_by}")
                else:
                    decision = self._try(start)
                    if isinstance(decision, Waits) and self._later is not None:
                        decision = self._compete(start, decision)
                verdict = Verdict(start, decision, position)
                position += 1
                if isinstance(decision, Placement):
                    answer.placed.append(verdict)
                    continue
                answer.waiting.append(verdict)
                if q.blocks:
                    blocked_by = blocked_by or start.job.id
        return answer

    def _try(self, start: Start) -> Decision:
        known = self._refusals.of.get(start.ask)
        if known is not None:
            return known  # as it was said of the first that asked for the same
        if self._tries == 0:
            return Waits(start.job.id, "waits for its turn to be looked at")
        self._tries -= 1
        decision = self._place(start, self._now)
        if isinstance(decision, Placement):
            self._hold(start, decision, self._now)
        elif isinstance(decision, Waits):
            self._refusals.of[start.ask] = decision
        return decision

    def _place(self, start: Start, room: Room) -> Decision:
        return self._pipeline.place(start.job, room.snapshot, self._q.eligible[start.shape])

    def _hold(self, start: Start, place: Placement, *rooms: Room) -> None:
        name = f"{start.job.id} {start.pods[0].uid}"
        for room in rooms:
            room.add(name, start.job, place.rows)
        if self._later is not None and self._later not in rooms:
            self._later.add(name, start.job, place.rows)

    # --- giving way ---------------------------------------------------------------------------

    def _compete(self, start: Start, waits: Waits) -> Decision:
        """Hold room that others are giving up already, or ask the least deserving to give way.

        What is held here is lost to all behind: they must not take what was freed for another.
        """
        assert self._later is not None
        if start.ask in self._hopeless:
            return waits
        place = self._place(start, self._later) if self._q.going else waits
        asked: list[Key] = []
        if not isinstance(place, Placement) and self._preemptors > 0:
            place, asked = self._make_room(start)
        if not isinstance(place, Placement):
            self._hopeless.add(start.ask)
            return waits
        self._hold(start, place, self._now, self._later)
        self._answer.gives_way += [GivesWay(victim, start.gpujob) for victim in asked]
        self._lesser = [key for key in self._lesser if key not in asked]
        # What was refused on more room than is left now stays refused: the memory is kept.
        names = ", ".join("/".join(key) for key in asked)
        return Waits(
            start.job.id,
            f"waits for {names} to give up its GPUs" if names else "waits for GPUs being given up",
        )

    def _make_room(self, start: Start) -> tuple[Decision, list[Key]]:
        """Return a place after as few as need be of those behind have gone, and who they are."""
        assert self._later is not None
        later, q = self._later, self._q
        service = q.service(start.gpujob)
        taken: dict[Key, dict[str, tuple[int, ...]]] = {}
        decision: Decision = Waits(start.job.id, "")
        wanted, freed = start.job.gpus, 0
        for key in self._lesser[:_CANDIDATES]:
            victim = q.victims[key]
            if self._rank[key] < self._rank[start.gpujob]:
                break
            if victim.service_gpu_s - service < victim.charge_gpu_s:
                continue
            taken[key] = later.rows_of(victim.uids)
            later.remove(victim.uids)
            freed += sum(map(len, taken[key].values()))
            decision = self._place(start, later)
            if isinstance(decision, Placement):
                break
        self._preemptors -= 1
        if not isinstance(decision, Placement):
            for rows in taken.values():
                later.put_back(rows)
            return decision, []
        if freed > wanted or len(taken) > 1:
            # Those that need not have gone stay, the most deserving first.
            for key in reversed(list(taken)[:-1]):
                later.put_back(taken[key])
                without = self._place(start, later)
                if isinstance(without, Placement):
                    decision = without
                    del taken[key]
                else:
                    later.remove(q.victims[key].uids)
        return decision, list(taken)
