"""One scheduling cycle as a pure function: the profile's dispatch on a board of the cluster.

The objects are the simulator's. What differs is what a cluster adds: a decision is carried out
now where its GPUs are free, and is only announced where somebody has to leave them first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.table import places_of
from scheduler_extender.planning.cluster_pipeline import ClusterPipeline, Refusals, Tries
from scheduler_extender.planning.cycle_input import (
    CycleInput,
    KnownJobs,
    cycle_input_of,
    keep_to_domains,
)
from scheduler_extender.planning.explaining import named
from scheduler_extender.planning.making_room import MakingRoom, preemption_gain_gpu_s
from scheduler_extender.planning.questions import (
    Answer,
    GivesWay,
    Part,
    Question,
    Start,
    Verdict,
    Waiting,
)
from scheduler_extender.planning.reserving import Capacity, Holdable, Impossible, Reserve
from scheduler_extender.planning.together import OtherResources, start_together
from tandem.policy.board import Start as Started
from tandem.policy.catalog import Profile
from tandem.policy.cluster import Snapshot
from tandem.policy.decision import Decision, Placement, PodPlacement, Waits
from tandem.policy.job import Job
from tandem.policy.links import connect
from tandem.policy.pipeline import Pipeline, wanted
from tandem.policy.topology import most_in_one
from tandem.policy.units import Ints
from tandem.reasons.causes import Cause, Reason

_TURNS = 8  # gangs of several roles that are tried at their place in the order
_AGAIN = 3  # times that a round is decided anew because a preemption would not pay


class Planner:
    """Planner state that lasts from cycle to cycle. Used by one thread at a time."""

    def __init__(self, profile: Profile, reserve_after_s: float = float("inf")) -> None:
        self._profile = profile
        self._pipeline = profile.pipeline()
        self._refusals = Refusals()
        self._reserve = Reserve(reserve_after_s)
        self._impossible = Impossible()
        self._holdable = Holdable()
        self._known = KnownJobs()
        self._rows: dict[tuple[str, str], int] = {}
        self._rows_are_of: tuple[str, ...] | None = None

    def forget_refusals(self) -> None:
        """Try everybody anew in the next round."""
        self._refusals.of.clear()

    def plan(self, question: Question) -> Answer:
        """Return which jobs start where, which give way, and which wait."""
        self._refusals.look(question.snapshot, question.eligible)
        spared: set[Key] = set()
        for again in range(_AGAIN + 1):
            inputs = self._draw(question, spared)
            this = _Round(
                question, inputs, self._profile, self._refusals, self._impossible, self._holdable
            )
            this.decide(self._reserve)
            too_dear = this.too_dear() if again < _AGAIN else set()
            if not too_dear:
                break
            spared |= too_dear
        return this.answer(self._pipeline)

    def _draw(self, question: Question, spared: set[Key]) -> CycleInput:
        snapshot = question.snapshot
        if snapshot.gpu_ids is not self._rows_are_of:
            self._rows = {place: row for row, place in enumerate(places_of(snapshot))}
            self._rows_are_of = snapshot.gpu_ids
        inputs = cycle_input_of(question, self._rows, self._known)
        inputs.board.pinned |= {i for i in inputs.held if inputs.keys[i] in spared} - inputs.going
        return inputs


class _Round:
    """One decision on one board."""

    def __init__(
        self,
        question: Question,
        inputs: CycleInput,
        profile: Profile,
        refusals: Refusals,
        impossible: Impossible,
        holdable: Holdable,
    ) -> None:
        self._holdable = holdable
        self._q = question
        self._inputs = inputs
        self._profile = profile
        self._impossible = impossible
        self._tries = Tries()
        self._pipeline = ClusterPipeline(
            profile.rules, profile.scorers, profile.gather,
            nodes=inputs.nodes, most=inputs.most, apart=inputs.apart, memory=refusals,
            tries=self._tries,
            residents=question.snapshot.gpus.jobs,
        )  # fmt: skip
        keep_to_domains(question, inputs, self._pipeline)
        self._starts: dict[int, tuple[int, ...]] = {}
        self._moves: set[int] = set()
        self._stops: set[int] = set()
        self._too_slow: set[int] = set()  # preempted because their neighbours slow them down

    # --- deciding -----------------------------------------------------------------------------

    def decide(self, reserve: Reserve) -> None:
        """Let the dispatch act on the board, and note what it did."""
        inputs, board, dispatch = self._inputs, self._inputs.board, self._profile.dispatch
        reserve.hold(self._q, inputs, self._pipeline, self._impossible)
        if self._q.targets:
            self._to_their_targets()
        if self._profile.order.blocks:
            self._pass_over_impossible()
        if dispatch.weighs_pairs and self._q.front:
            # It tries jobs by worth; those that were moved to the front come before all others.
            front = [i for i in self._waiting() if inputs.keys[i] in self._q.front]
            whole = [i for i in front if i not in inputs.roles]
            if whole:
                self._dispatch(np.array(whole, dtype=np.int64))
                inputs.began([i for i in whole if i in board.rows_of])
            for index in front:
                self._start_roles(index)
        if inputs.roles:
            self._in_turns()
        else:
            waiting = ~board.arrays.running[inputs.ranked]
            self._dispatch(inputs.ranked if dispatch.preempts else inputs.ranked[waiting])
        self._connect()
        self._note()
        if dispatch.ignores_preemption_cost:
            room = MakingRoom(self._q, inputs, self._pipeline, self._starts, self._stops)
            room.seek([i for i in self._waiting() if i not in inputs.roles])

    def _in_turns(self) -> None:
        """Dispatch, and start gangs of several roles when their turn in the order has come.

        The dispatch knows jobs of one role. It gets those in front of such a gang before the gang
        is tried, and all others afterwards. Beyond `_TURNS` such gangs, the others come last.
        """
        inputs, board = self._inputs, self._inputs.board
        blocks, preempts = self._profile.order.blocks, self._profile.dispatch.preempts
        ranked = inputs.ranked
        whole = np.array([index not in inputs.roles for index in ranked.tolist()])
        at = [place for place in np.flatnonzero(~whole).tolist() if self._waits(ranked[place])]
        place_of = np.arange(len(ranked))
        tried = -1  # of the order, up to where the dispatch has been
        for place in (*at[:_TURNS], len(ranked)):
            running = board.arrays.running[ranked]
            before = whole & ~running & (place_of < place)
            if place == len(ranked) or (before & (place_of > tried)).any():
                self._dispatch(ranked[before | (whole & running)] if preempts else ranked[before])
                begun = [i for i in ranked[before].tolist() if i in board.rows_of]
                if place < len(ranked):
                    inputs.began(begun)
                if blocks and len(begun) < np.count_nonzero(before):
                    return
            tried = place
            if place < len(ranked) and not self._start_roles(int(ranked[place])) and blocks:
                return
        for place in at[_TURNS:]:
            index = int(ranked[place])
            if not self._start_roles(index, len(inputs.roles[index])) and blocks:
                return

    def _waits(self, index: int) -> bool:
        return self._inputs.starts[index] is not None and index not in self._inputs.board.rows_of

    def _start_roles(self, index: int, tries: int = 1) -> bool:
        """Start a gang of several roles, or say that one of them has no place.

        `tries` is what that counts as among the searches of a round; it is not remembered.
        """
        roles = self._inputs.roles.get(index)
        if roles is None or not self._waits(index):
            return False
        if self._tries.left <= 0:
            self._tries.put_off.add(self._inputs.board.jobs[index].id)
            return False
        self._tries.left -= tries
        board = self._inputs.board
        resources = OtherResources(self._q.nodes, self._inputs.parts(index), board.gpus.node)
        begun = start_together(board, roles, self._pipeline, resources)
        self._inputs.began(list(roles) if begun else [])
        return begun

    def _to_their_targets(self) -> None:
        """Start gangs that are being moved where their move leads, if they may still go there."""
        inputs, started = self._inputs, []
        at = places_of(self._q.snapshot)
        for index in self._waiting():
            places = self._q.targets.get(inputs.keys[index], frozenset())
            rows = np.array([r for r, place in enumerate(at) if place in places], dtype=np.int64)
            job, gpus = inputs.board.jobs[index], inputs.board.gpus
            if (
                len(rows) == job.gpus
                and index not in inputs.roles
                and self._pipeline.evaluate(job, gpus.take(rows)).allowed.all()
            ):
                inputs.board.start(index, rows)
                started.append(index)
        inputs.began(started)

    def _pass_over_impossible(self) -> None:
        """Put jobs that the cluster could not hold behind all others: they block no job then."""
        inputs = self._inputs
        waiting = self._waiting()
        capacity = Capacity(self._q, self._pipeline)
        next(iter(self._impossible.sift(waiting, self._q, inputs, capacity)), None)
        behind = np.array([inputs.starts[i] in self._impossible for i in inputs.ranked.tolist()])
        behind &= ~inputs.board.arrays.running[inputs.ranked]
        inputs.ranked = np.concatenate((inputs.ranked[~behind], inputs.ranked[behind]))

    def _dispatch(self, ranked: Ints) -> None:
        board = self._inputs.board
        self._profile.dispatch(board, ranked, self._pipeline, self._profile.order.blocks)

    def _connect(self) -> None:
        """Exchange GPUs of starts for better connected ones, on which no job is now."""
        inputs, snapshot = self._inputs, self._q.snapshot
        if snapshot.links is None:
            return
        # A gang that is being moved has been promised its very GPUs.
        fixed = {i for i, key in enumerate(inputs.keys) if key in self._q.targets}
        taken = snapshot.gpus.jobs > 0
        connect(inputs.board, snapshot.links, self._pipeline, taken, fixed)

    def _waiting(self) -> list[int]:
        """Return the starts that have no place, in order."""
        inputs = self._inputs
        return [
            i
            for i in inputs.ranked.tolist()
            if inputs.starts[i] is not None and i not in inputs.board.rows_of
        ]

    def _note(self) -> None:
        for action in self._inputs.board.take_actions():
            if not isinstance(action, Started):
                self._stops.add(action.job)
                if action.too_slow:
                    self._too_slow.add(action.job)
            elif action.job in self._stops:
                self._moves.add(action.job)
            else:
                self._starts[action.job] = action.rows

    def too_dear(self) -> set[Key]:
        """Return running gangs whose preemption costs more than it brings, as the order weighs it.

        The set is empty where the dispatch weighs the cost itself.
        """
        if not self._profile.dispatch.ignores_preemption_cost:
            return set()
        found = set()
        for index, victims in self._needs().items():
            for victim in victims & self._stops:
                key = self._inputs.keys[victim]
                known = self._q.victims[key]
                # What costs nothing is the order's to decide, as in the simulator: in a list, who
                # came first goes first, even where both have had the same.
                gain = preemption_gain_gpu_s(self._q, self._inputs, victim, index)
                if known.charge_gpu_s > 0 and gain < known.charge_gpu_s:
                    found.add(key)
        return found

    def _needs(self) -> dict[int, set[int]]:
        """Return for each start that has to wait who must leave its GPUs first."""
        leaving: dict[int, set[int]] = defaultdict(set)
        for index in self._stops | self._inputs.going:
            for row in self._inputs.held[index]:
                leaving[row].add(index)
        needs: dict[int, set[int]] = {}
        for index, rows in self._starts.items():
            found = {other for row in rows for other in leaving.get(row, ())}
            if found:
                needs[index] = found
        return needs

    # --- what came out ------------------------------------------------------------------------

    def _in_order(self) -> list[int]:
        """Return all rows in the order in which they were tried; those at the front come first."""
        inputs, dispatch = self._inputs, self._profile.dispatch
        ranked: list[int] = inputs.ranked.tolist()
        if not dispatch.weighs_pairs:
            return ranked
        rest: list[int] = dispatch.in_order(inputs.board, inputs.ranked).tolist()
        if not self._q.front:
            return rest
        front = [i for i in ranked if inputs.keys[i] in self._q.front]
        at_front = set(front)
        return [*front, *(i for i in rest if i not in at_front)]

    def answer(self, pipeline: Pipeline) -> Answer:
        """Return the decisions in terms of gangs and pods."""
        inputs, needs = self._inputs, self._needs()
        explaining = _Explaining(
            self._q,
            inputs,
            pipeline,
            self._pipeline,
            self._profile,
            self._impossible,
            self._holdable,
        )
        answer = Answer(explaining.causes)
        explaining.waiting = answer.waiting
        asked: set[int] = set()
        room = self._q.nodes.room() if self._q.nodes is not None else None
        node = self._q.snapshot.gpus.node
        for index in self._in_order():
            start = inputs.starts[index]
            if start is None:
                continue
            if index not in self._starts:
                answer.waiting.add(start)
                continue
            job, roles = inputs.board.jobs[index], inputs.roles.get(index, (index,))
            place = self._place_of(roles)
            leaving = set().union(*(needs.get(role, ()) for role in roles))
            if not leaving and place is not None:
                at = [int(node[pod.rows[0]]) for pod in place.pods]
                short = room and room.take(list(zip(start.all_pods, at, strict=True)))
                if short:
                    answer.waiting.add(start, Cause(Reason.OVERTAKEN, resource=short))
                    continue
                answer.placed.append(Verdict(start, place, job.accumulation_steps))
                continue
            new = sorted((leaving & self._stops) - asked)
            asked |= set(new)
            answer.gives_way += [GivesWay(inputs.keys[v], start.gpujob) for v in new]
            # Those that were asked in an earlier round as well: it waits for them still.
            keys = dict.fromkeys(inputs.keys[v] for v in sorted(leaving))
            names = named(keys, start.gpujob)
            answer.waiting.add(start, Cause(Reason.MAKING_ROOM, job=names or None), coming=True)
        # A job is preempted only to make room for a start, to move, or because it is too slow.
        answer.gives_way += [
            GivesWay(inputs.keys[i], inputs.keys[i], too_slow=i in self._too_slow)
            for i in sorted((self._moves | self._too_slow) - asked)
        ]
        return answer

    def _place_of(self, roles: Sequence[int]) -> Placement | None:
        """Return the place of a start, role by role, or None where pods would be torn apart."""
        pods: list[PodPlacement] = []
        for role in roles:
            job = self._inputs.board.jobs[role]
            place = _placement(job, self._starts[role], self._q.snapshot)
            if place is None:
                return None
            pods += place.pods
        return Placement(self._inputs.board.jobs[roles[0]].id, tuple(pods))


@dataclass(eq=False)
class _Explaining:
    """Says why a start waits, on the board as the round has left it."""

    _q: Question
    _inputs: CycleInput
    _pipeline: Pipeline
    _of_round: ClusterPipeline
    _profile: Profile
    _impossible: Impossible
    _holdable: Holdable
    waiting: Sequence[Waiting] = ()
    _known: dict[tuple[object, ...], tuple[Cause, ...]] = field(default_factory=dict)

    def causes(self, waiting: Waiting) -> tuple[Cause, ...]:
        """Return why a start waits."""
        if waiting.causes:
            return waiting.causes
        job = waiting.start.job
        if self._is_behind(waiting):
            first = named([self.waiting[0].start.gpujob], waiting.start.gpujob)
            return (Cause(Reason.BEHIND, job=first),)
        if job.id in self._of_round.tries.put_off:
            return (Cause(Reason.NOT_LOOKED_AT),)
        return self._of_roles(waiting.start)

    def _is_behind(self, waiting: Waiting) -> bool:
        behind = waiting.position > 0 and waiting.start not in self._impossible
        return self._profile.order.blocks and behind

    def _of_roles(self, start: Start) -> tuple[Cause, ...]:
        """Return why a start waits: the first of its roles that has no place, even by itself."""
        if not start.others:
            return self._next_to_its_own(start) or self._found(start.job)
        for part in start.parts:
            if not self._fits(part.job):
                return tuple(_of_role(part, cause) for cause in self._found(part.job))
        needs = (_of_role(part, wanted(part.job)) for part in start.parts)
        if not self._capacity.holds(start.parts):
            return (self._capacity.too_small(start.parts), *needs)
        return (Cause(Reason.ROLES, gpus=start.gpus), *needs)

    def _next_to_its_own(self, start: Start) -> tuple[Cause, ...]:
        """Return why pods wait where only GPUs of other pods of their gang are left."""
        if start.gpujob not in self._q.joining or not self._fits(start.job):
            return ()
        inputs, gpus = self._inputs, self._inputs.board.gpus
        index = next(i for i, each in enumerate(inputs.starts) if each is start)
        job = inputs.board.jobs[index]
        allowed = self._of_round.allowed(job, gpus)
        if np.count_nonzero(allowed) >= job.gpus or job.where not in inputs.apart:
            return ()
        own = self._of_round.allowed(start.job, gpus) & ~allowed
        return wanted(job, allowed), Cause(Reason.OWN_PODS, gpus=int(np.count_nonzero(own)))

    def _fits(self, job: Job) -> bool:
        return isinstance(self._placed(job), Placement)

    def _found(self, job: Job) -> tuple[Cause, ...]:
        if job.demand not in self._known:
            self._known[job.demand] = self._search(job)
        return self._known[job.demand]

    def _search(self, job: Job) -> tuple[Cause, ...]:
        found = self._placed(job)
        if not isinstance(found, Waits):
            apart = self._in_no_domain(job)
            if apart is None:
                return (Cause(Reason.WAITING_IS_BETTER),)
            found = apart
        never = self._holdable.why_not(job, self._q, lambda: self._capacity)
        if not never:
            return found.causes
        fewer = (each for each in found.causes if each.reason is Reason.NODE_HAS_FEWER)
        return (found.causes[0], *never, *fewer)

    def _in_no_domain(self, job: Job) -> Waits | None:
        """Return why a job waits whose GPUs are there, but not in one domain that it requires."""
        if not job.required_topology:
            return None
        gpus, most = self._inputs.board.gpus, 0
        allowed = self._of_round.allowed(job, gpus)
        if self._q.topology is not None:
            most = most_in_one(job, gpus, allowed, self._q.topology)
        if most >= job.gpus:
            return None
        full = Cause(
            Reason.DOMAINS_FULL, resource=job.required_topology, value=job.gpus, bound=most
        )
        return Waits(job.id, (wanted(job, allowed), full.cut()))

    @cached_property
    def _capacity(self) -> Capacity:
        return Capacity(self._q, self._of_round)

    def _placed(self, job: Job) -> Decision:
        board = self._inputs.board
        q = self._q.snapshot
        now = Snapshot(gpus=board.gpus, node_names=q.node_names, gpu_ids=q.gpu_ids)
        nodes, most = self._inputs.nodes.get(job.where), self._inputs.most.get(job.where)
        return self._pipeline.place(job, now, nodes, most, self._besides(job, most))

    def _besides(self, job: Job, most: Ints | None) -> tuple[Cause, ...]:
        """Return what nodes lack for the pods besides GPUs."""
        nodes = self._q.nodes
        if nodes is None or job.where not in nodes.asks:
            return ()
        why = nodes.why_not(job.where)
        if most is None:
            return why
        gpus = np.bincount(self._q.snapshot.gpus.node, minlength=len(most))
        suits = self._inputs.nodes.get(job.where, True)
        fewer = int(np.count_nonzero((most > 0) & (most < gpus) & suits))
        if not fewer:
            return why
        short = ", ".join(nodes.short_of(job.where, gpus))
        return (*why, Cause(Reason.NODE_HAS_FEWER, resource=short, nodes=fewer))


def _of_role(part: Part, cause: Cause) -> Cause:
    """Return what a role needs with its name."""
    if cause.reason is not Reason.NEEDS_GPUS or not part.role:
        return cause
    return replace(cause, role=part.role).cut()


def _placement(job: Job, rows: tuple[int, ...], snapshot: Snapshot) -> Placement | None:
    """Return the rows pod by pod, or None where they do not make whole pods on one node each."""
    by_node: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        by_node[int(snapshot.gpus.node[row])].append(row)
    size, pods = job.gpus_per_pod, []
    for node, there in by_node.items():
        if len(there) % size:
            return None
        for at in range(0, len(there), size):
            part = tuple(there[at : at + size])
            ids = tuple(snapshot.gpu_ids[row] for row in part)
            pods.append(PodPlacement(snapshot.node_names[node], ids, part))
    return Placement(job.id, tuple(pods))
