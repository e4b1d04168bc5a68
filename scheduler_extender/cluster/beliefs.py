"""What is believed of how jobs slow one another down: one table for the planner and the verbs.

Loads that interfere alike are one class. A new class is priced at once by Horus' quadratic in the
total utilisation; where both loads came from graphs the predictor says better, and is asked once a
class, at admission, against all the classes that are known. So no plan waits for the predictor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scheduler_extender.cluster.learned import Pair, Pairs
from tandem.contracts.prediction import InterferenceAnswer
from tandem.contracts.resources import Load
from tandem.policy.equations.horus import slowdown_over_commit
from tandem.policy.job import NOBODY, UNKNOWN, Job
from tandem.policy.units import Floats

log = logging.getLogger(__name__)

CLASSES = 1024
_BY_UTILISATION = 101  # classes kept free for loads of which only the utilisation counts

_Key = tuple[str | float, ...]  # model, utilisation, then its shares of the GPU where known


class Beliefs:
    """Classes of loads, and the slowdown of each beside each. Runs on the event loop.

    Jobs carry views of the table, so that what is learned reaches them all. Answers take effect by
    `settle` alone, between two rounds: a plan is made on one belief. `models` names the model of
    each class, '' where its jobs name none.
    """

    def __init__(self, pairs: Pairs | None = None) -> None:
        self.pairs = Pairs() if pairs is None else pairs  # an empty one is false
        self._pairs_known = 0
        self._predicted: dict[tuple[int, int], float] = {}  # what was learned stands in its place
        self.models = ["", ""]  # by class; nobody and the unknown have none
        self._slowdown: Floats = np.full((CLASSES, CLASSES), np.inf)  # of the row's, beside
        self._slowdown[:, NOBODY] = self._slowdown[NOBODY, :] = 0.0
        self._view = self._slowdown.view()
        self._view.setflags(write=False)
        self._classes: dict[_Key, int] = {}
        self._utilisation = np.zeros(CLASSES)  # percent
        self._loads: dict[int, Load] = {}  # those that a model can price, by class
        self._unasked: dict[int, None] = {}
        self._answers: list[tuple[int, Sequence[int], InterferenceAnswer]] = []

    def of(self, job: Job, load: Load | None = None) -> Job:
        """Return `job` with its class; without a load, by its utilisation alone."""
        if job.exclusive:
            return job
        index = self.class_of(job, load)
        own = self.pairs.of_namespace(job.id.partition("/")[0])
        if job.model and any(job.model in pair for pair in own):
            return self._experienced(job, index, own)
        if index == job.interference_class:
            return job
        return replace(
            job,
            interference_class=index,
            own_slowdown=self._view[index],
            caused_slowdown=self._view[:, index],
        )

    def _experienced(self, job: Job, index: int, own: Mapping[Pair, float]) -> Job:
        """Return the job with what its own namespace has learned of its like."""
        mine, caused = self._slowdown[index].copy(), self._slowdown[:, index].copy()
        for (one, other), slowdown in own.items():
            if one == job.model:
                mine[self._called(other)] = slowdown
            if other == job.model:
                caused[self._called(one)] = slowdown
        return replace(
            job,
            interference_class=index,
            own_slowdown=mine,
            caused_slowdown=caused,
            experience=job.id.partition("/")[0],
        )

    def _called(self, model: str) -> list[int]:
        return [index for index, name in enumerate(self.models) if name == model]

    def class_of(self, job: Job, load: Load | None) -> int:
        """Return the class of a load; made and priced by the formula where it is new."""
        utilisation = float(round(job.gpu_utilisation))
        shares = _shares(load)
        key: _Key = (job.model, utilisation, *shares)
        if key not in self._classes and len(self.models) >= CLASSES - _BY_UTILISATION:
            key, shares = ("", utilisation), ()  # no more room: the formula must do
        index = self._classes.get(key)
        if index is None:
            index = self._classes[key] = len(self.models)
            self.models.append(str(key[0]))
            self._utilisation[index] = utilisation
            known = slice(UNKNOWN + 1, index + 1)
            slower = slowdown_over_commit(utilisation + self._utilisation[known]) - 1
            self._slowdown[index, known] = self._slowdown[known, index] = slower
            self._pairs_known = -1  # what was learned of its like holds for it from `settle` on
            if shares and load is not None:
                self._loads[index] = load
                self._unasked[index] = None
        return index

    def to_ask(self) -> tuple[int, Load, list[int], list[Load]] | None:
        """Return a class about which the predictor has not been asked, with its candidates.

        It counts as asked from then on, until `not_said`.
        """
        if not self._unasked:
            return None
        index = next(iter(self._unasked))
        del self._unasked[index]
        others = [other for other in self._loads if other not in self._unasked]
        return index, self._loads[index], others, [self._loads[other] for other in others]

    def not_said(self, index: int) -> None:
        """Note that the predictor did not answer; it is asked again."""
        self._unasked[index] = None

    def said(self, index: int, others: Sequence[int], answer: InterferenceAnswer) -> None:
        """Keep an answer until the next `settle`."""
        if len(answer.pairs) == len(others):
            self._answers.append((index, others, answer))
        else:
            log.warning("predictor priced %d of %d pairs", len(answer.pairs), len(others))

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
        return changed | self._learn()

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
            for (own, beside), slowdown in self.pairs.for_all().items()
            for i in self._called(own)
            for j in self._called(beside)
        }
        self._predicted = {at: float(self._slowdown[at]) for at in learned}
        for at, slowdown in learned.items():
            self._slowdown[at] = slowdown
        changed = {at for at in {*before, *learned} if before.get(at) != learned.get(at)}
        return {index for at in changed for index in at}


def _shares(load: Load | None) -> tuple[float, ...]:
    """Return what a load takes of a GPU's rates, by which a model prices it; () where not known."""
    if load is None:
        return ()
    shares = load.iteration_s, load.compute_share, load.bandwidth_share
    known = tuple(share for share in shares if share is not None)
    return known if len(known) == len(shares) else ()
