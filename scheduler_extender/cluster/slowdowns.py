"""Slowdowns of each class of loads next to each other class: one table for planner and verbs.

Loads that interfere alike are one class. A new class is priced at once by Horus' quadratic in the
total utilisation; where both loads came from graphs the predictor says better, and is asked once a
class, at admission, against all the classes that are known. So no plan waits for the predictor.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from weakref import ref

import numpy as np

from scheduler_extender.cluster.jobs import rates_of
from scheduler_extender.cluster.pair_slowdowns import Pair, PairSlowdowns, PlacementHistory
from tandem.contracts.prediction import InterferenceAnswer
from tandem.contracts.resources import Load
from tandem.policy.equations.horus import slowdown_over_commit
from tandem.policy.job import EMPTY_SLOT, UNKNOWN, Job, SubBatch
from tandem.policy.units import Floats

log = logging.getLogger(__name__)

CLASSES = 1024
_BY_UTILISATION = 101  # classes kept free for loads of which only the utilisation counts
#: Classes of kinds of jobs, in all and for one namespace: no tenant takes the room of the others.
KINDS = CLASSES - _BY_UTILISATION - (UNKNOWN + 1)
KINDS_PER_NAMESPACE = 128
#: Classes that no job uses are released when this share of the room is taken, down to that one.
_CROWDED, _ROOMY = 0.9, 0.75
_REST_ROUNDS = 50

#: Model, utilisation, then its shares of the GPU where known, and of which type these are.
_Key = tuple[str | float, ...]
_Experience = tuple[str, str, int]  # namespace, model, class


class Slowdowns:
    """Classes of loads, and the slowdown of each next to each. Runs on the event loop.

    Jobs carry views of the table, so that what is learned reaches them all. Answers take effect by
    `settle` alone, between two rounds: a plan is made on one belief. `models` names the model of
    each class, '' where its jobs name none. A class lasts while jobs use it; `release` makes room
    for new kinds. A kind for which there is no room is priced by its utilisation alone meanwhile.
    """

    def __init__(
        self, pairs: PairSlowdowns | None = None, placements: PlacementHistory | None = None
    ) -> None:
        self.pairs = PairSlowdowns() if pairs is None else pairs  # an empty one is false
        self.placements = placements or PlacementHistory()
        self._pairs_known = 0
        self._predicted: dict[tuple[int, int], float] = {}  # what was learned stands in its place
        self.models = ["", ""]  # by class; the empty slot and the unknown have none
        self._slowdown: Floats = np.full(
            (CLASSES, CLASSES), np.inf
        )  # of the row, next to the column
        self._slowdown[:, EMPTY_SLOT] = self._slowdown[EMPTY_SLOT, :] = 0.0
        view = self._slowdown.view()
        view.setflags(write=False)
        # Each array of a row or a column is one for all jobs of that class.
        self._row_of, self._column_of = list(view), list(view.T)
        self._classes: dict[_Key, int] = {}
        self._utilisation = np.zeros(CLASSES)  # percent
        self._loads: dict[int, Load] = {}  # those that a model can price, by class
        self._unasked: dict[int, None] = {}
        self._answers: list[tuple[int, Sequence[int], InterferenceAnswer]] = []
        self._asking: Counter[int] = Counter()  # classes in requests that are under way
        self._others: dict[int, list[int]] = {}  # by the class that each is about
        self._free: list[int] = []  # classes released
        self._owner: dict[int, str] = {}  # the namespace for which a class of a kind was made
        self._kinds: Counter[str] = Counter()  # how many, by namespace
        self._used: dict[int, int] = {}  # when each was asked for last, in calls
        self._calls = 0
        self._crowded = False
        self._rest = 0  # rounds
        self._experience: dict[_Experience, tuple[ref[Floats], ref[Floats]]] = {}
        self._experience_known = (0, 0)
        self._made = 0  # classes, in all

    @property
    def kinds(self) -> int:
        """The number of kinds of jobs that have a class of their own."""
        return len(self._owner)

    def of(self, job: Job, load: Load | None = None) -> Job:
        """Return `job` with its class; without a load, by its utilisation alone.

        A sub-batch has a class of its own where it is known what it takes of a GPU.
        """
        return self._classified(job, load, insert=True)

    def find(self, job: Job, load: Load | None = None) -> Job:
        """Return the same as `of`, and insert nothing: for questions.

        A load that has no class is priced by the formula, as its class would be at first.
        """
        return self._classified(job, load, insert=False)

    def _classified(self, job: Job, load: Load | None, *, insert: bool) -> Job:
        if load is not None and load.tensor_skew is not None:
            limit = self.placements.limit(job.id.partition("/")[0])
            if job.skewed != (load.tensor_skew > limit):
                job = replace(job, skewed=load.tensor_skew > limit)
        if job.exclusive:
            return job
        if load is not None and any(part.rates for part in job.sub_batches):
            parts = (self._part(job, load, part, insert=insert) for part in job.sub_batches)
            job = replace(job, sub_batches=tuple(parts))
        index = self.class_of(job, load) if insert else self._found(job, load)
        if index is None:
            return self._unclassified(job)
        own = self.pairs.of_namespace(job.id.partition("/")[0])
        if job.model and any(job.model in pair for pair in own):
            return self._experienced(job, index, own, insert=insert)
        if index == job.interference_class:
            return job
        return job.with_class(index, self._row_of[index], self._column_of[index])

    def _unclassified(self, job: Job) -> Job:
        """Return a job that has no class, priced by the formula against the classes that exist."""
        known = np.fromiter(self._classes.values(), np.int64)
        prices = np.full(CLASSES, np.inf)
        prices[EMPTY_SLOT] = 0.0
        total = round(job.gpu_utilisation) + self._utilisation[known]
        prices[known] = slowdown_over_commit(total) - 1
        return replace(job, own_slowdown=prices, caused_slowdown=prices)

    def _part(self, job: Job, load: Load, part: SubBatch, *, insert: bool) -> SubBatch:
        """Return a sub-batch with the class of its micro-batches ([SJF-BSBF] Alg. 2)."""
        if not part.rates or part.gpu_utilisation is None:
            return part
        iteration_s, compute, bandwidth = part.rates
        of_part = load.model_copy(
            update={
                "utilisation_percent": part.gpu_utilisation,
                "iteration_s": iteration_s,
                "compute_share": compute,
                "bandwidth_share": bandwidth,
                "pair": None,
            }
        )
        as_run = replace(job, sub_batches=(), gpu_utilisation=part.gpu_utilisation)
        as_run = self._classified(as_run, of_part, insert=insert)
        return replace(
            part,
            interference_class=as_run.interference_class,
            own_slowdown=as_run.own_slowdown,
            caused_slowdown=as_run.caused_slowdown,
        )

    def _experienced(self, job: Job, index: int, own: Mapping[Pair, float], *, insert: bool) -> Job:
        """Return the job with what its own namespace has learned of its like."""
        namespace = job.id.partition("/")[0]
        key = (namespace, job.model, index)
        known = self._experience.get(key)
        mine, caused = (None, None) if known is None else (known[0](), known[1]())
        if mine is None or caused is None:
            mine, caused = self._with_own(job.model, index, own)
            if insert:
                self._experience[key] = ref(mine), ref(caused)
        return replace(
            job,
            interference_class=index,
            own_slowdown=mine,
            caused_slowdown=caused,
            experience=namespace,
        )

    def _with_own(self, model: str, index: int, own: Mapping[Pair, float]) -> tuple[Floats, Floats]:
        """Return a class's row and column of the table, with what one namespace has learned."""
        mine, caused = self._slowdown[index].copy(), self._slowdown[:, index].copy()
        for (one, other), slowdown in own.items():
            if one == model:
                mine[self._called(other)] = slowdown
            if other == model:
                caused[self._called(one)] = slowdown
        return mine, caused

    def _refresh_experience(self) -> set[int]:
        """Bring up to date what namespaces have learned for themselves; return whose changed."""
        changed = set()
        for key, (one, other) in list(self._experience.items()):
            mine, caused = one(), other()
            if mine is None or caused is None:
                del self._experience[key]  # no job holds it
                continue
            namespace, model, index = key
            new = self._with_own(model, index, self.pairs.of_namespace(namespace))
            if not (np.array_equal(mine, new[0]) and np.array_equal(caused, new[1])):
                mine[:], caused[:] = new
                changed.add(index)
        return changed

    def _called(self, model: str) -> list[int]:
        return [index for index, name in enumerate(self.models) if name == model]

    def class_of(self, job: Job, load: Load | None) -> int:
        """Return the class of a load; made and priced by the formula where it is new."""
        namespace = job.id.partition("/")[0]
        utilisation = float(round(job.gpu_utilisation))
        key, plain, shares = _keys_of(job, load)
        if key not in self._classes and key != plain and not self._has_room(namespace):
            self._crowded = True
            key, shares = plain, ()  # the formula must do until there is room
        index = self._classes.get(key)
        if index is None:
            index = self._make(key, utilisation)
            if key != plain:
                self._owner[index] = namespace
                self._kinds[namespace] += 1
            if shares and load is not None:
                self._loads[index] = load
                self._unasked[index] = None
        self._calls += 1
        self._used[index] = self._calls
        return index

    def _found(self, job: Job, load: Load | None) -> int | None:
        """Return the class that a load has now; None where it has none."""
        key, plain, _ = _keys_of(job, load)
        if key not in self._classes and not self._has_room(job.id.partition("/")[0]):
            key = plain
        return self._classes.get(key)

    def _has_room(self, namespace: str) -> bool:
        return len(self._owner) < KINDS and self._kinds[namespace] < KINDS_PER_NAMESPACE

    def _make(self, key: _Key, utilisation: float) -> int:
        """Return a new class, priced by the formula against all that there are."""
        if self._free:
            index = self._free.pop()
            self.models[index] = str(key[0])
        else:
            index = len(self.models)
            self.models.append(str(key[0]))
        self._classes[key] = index
        self._made += 1
        self._utilisation[index] = utilisation
        known = np.fromiter(self._classes.values(), np.int64)
        slower = slowdown_over_commit(utilisation + self._utilisation[known]) - 1
        self._slowdown[index, known] = self._slowdown[known, index] = slower
        self._pairs_known = -1  # what was learned of its like holds for it from `settle` on
        return index

    def crowded(self) -> bool:
        """Say whether classes should be released, or new kinds will find no room.

        To be asked once a round. Where all were in use the last time, some rounds are left out: who
        finds out what is in use looks at all that runs.
        """
        if self._rest:
            self._rest -= 1
            return False
        return (
            self._crowded
            or len(self._owner) > _CROWDED * KINDS
            or any(count > _CROWDED * KINDS_PER_NAMESPACE for count in self._kinds.values())
        )

    def release(self, in_use: Set[int]) -> set[int]:
        """Release classes that no job uses, the least recently used first; return which.

        `in_use` has the classes of all jobs that are held anywhere. To be called between two
        rounds: a class that is released may stand for another kind at once.
        """
        self._crowded = False
        busy = {*in_use, *self._asking}
        over = len(self._owner) - round(_ROOMY * KINDS)
        most = round(_ROOMY * KINDS_PER_NAMESPACE)
        released: set[int] = set()
        for index in sorted(self._owner.keys() - busy, key=lambda i: self._used.get(i, 0)):
            if len(released) >= over and self._kinds[self._owner[index]] <= most:
                continue
            released.add(index)
            self._kinds[self._owner.pop(index)] -= 1
        self._kinds += Counter()  # without those that have none left
        if released:
            self._forget(released)
        else:
            self._rest = _REST_ROUNDS
        return released

    def _forget(self, released: set[int]) -> None:
        self._classes = {k: i for k, i in self._classes.items() if i not in released}
        self._answers = [said for said in self._answers if released.isdisjoint((said[0], *said[1]))]
        self._predicted = {
            at: value for at, value in self._predicted.items() if released.isdisjoint(at)
        }
        self._experience = {
            key: held for key, held in self._experience.items() if key[2] not in released
        }
        at = np.array(sorted(released), dtype=np.int64)
        self._slowdown[at, :] = self._slowdown[:, at] = np.inf
        self._slowdown[at, EMPTY_SLOT] = self._slowdown[EMPTY_SLOT, at] = 0.0
        self._utilisation[at] = 0.0
        for index in at.tolist():
            self.models[index] = ""
            self._loads.pop(index, None)
            self._unasked.pop(index, None)
            self._used.pop(index, None)
        self._free += at.tolist()

    def to_ask(self) -> tuple[int, Load, list[int], list[Load]] | None:
        """Return a class about which the predictor has not been asked, with its candidates.

        It counts as asked from then on, until `not_said`.
        """
        if not self._unasked:
            return None
        index = next(iter(self._unasked))
        del self._unasked[index]
        others = [other for other in self._loads if other not in self._unasked]
        self._asking.update((index, *others))
        self._others[index] = others
        return index, self._loads[index], others, [self._loads[other] for other in others]

    def not_said(self, index: int) -> None:
        """Note that the predictor did not answer; it is asked again."""
        self._answered(index)
        self._unasked[index] = None

    def said(self, index: int, others: Sequence[int], answer: InterferenceAnswer) -> None:
        """Keep an answer until the next `settle`."""
        self._answered(index)
        if len(answer.pairs) == len(others):
            self._answers.append((index, others, answer))
        else:
            log.warning("predictor priced %d of %d pairs", len(answer.pairs), len(others))

    def _answered(self, index: int) -> None:
        self._asking.subtract((index, *self._others.pop(index, ())))
        self._asking += Counter()  # without those that are in no request any more

    def settle(self) -> set[int]:
        """Let answers take effect; return the classes whose slowdowns have changed."""
        changed: set[int] = set()
        if self._answers:
            for where, predicted in self._predicted.items():
                self._slowdown[where] = predicted
            self._predicted, self._pairs_known = {}, -1
        for index, others, answer in self._answers:
            at = np.array(others, dtype=np.int64)
            planned = np.array([pair.planned for pair in answer.pairs]).reshape(-1, 2)
            own, caused = planned.T
            before = self._slowdown[index, at], self._slowdown[at, index]
            if not (np.array_equal(before[0], own) and np.array_equal(before[1], caused)):
                changed |= {index, *others}
            self._slowdown[at, index] = caused
            self._slowdown[index, at] = own
        self._answers.clear()
        changed |= self._learn()
        if changed or self._experience_known != self._experience_version():
            changed |= self._refresh_experience()
            self._experience_known = self._experience_version()
        return changed

    def _experience_version(self) -> tuple[int, int]:
        """Return what changes with each word and each class."""
        return self.pairs.version, self._made

    def _learn(self) -> set[int]:
        """Let what running jobs have shown stand in the place of what was predicted."""
        if self._pairs_known == self.pairs.version:
            return set()
        self._pairs_known = self.pairs.version
        before = {at: float(self._slowdown[at]) for at in self._predicted}
        for at, predicted in self._predicted.items():
            self._slowdown[at] = predicted
        learned = {
            (i, j): slowdown
            for (own, neighbour), slowdown in self.pairs.for_all().items()
            for i in self._called(own)
            for j in self._called(neighbour)
        }
        self._predicted = {at: float(self._slowdown[at]) for at in learned}
        for at, slowdown in learned.items():
            self._slowdown[at] = slowdown
        changed = {at for at in {*before, *learned} if before.get(at) != learned.get(at)}
        return {index for at in changed for index in at}


def _keys_of(job: Job, load: Load | None) -> tuple[_Key, _Key, tuple[float, ...]]:
    """Return the key of a load, its key by utilisation alone, and its shares of the GPU."""
    utilisation = float(round(job.gpu_utilisation))
    shares = rates_of(load) if load is not None else ()
    return (job.model, utilisation, *shares, *_gpu_of(load, shares)), ("", utilisation), shares


def _gpu_of(load: Load | None, shares: tuple[float, ...]) -> tuple[str, ...]:
    """Return the type of GPU that shares are of, so that each pair is priced on a type it meets."""
    return (load.gpu_model,) if load is not None and shares else ()


def classes_of(job: Job) -> set[int]:
    """Return the classes that a job uses: its own, and those of its sub-batches."""
    parts = (part.interference_class for part in job.sub_batches)
    return {job.interference_class, *(index for index in parts if index is not None)}
