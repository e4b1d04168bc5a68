"""Running jobs make room for those worth far more."""

from __future__ import annotations

import numpy as np

from tandem.policy.board import Aside
from tandem.policy.columns import JobColumns
from tandem.policy.dispatch.fit import fits_in_order
from tandem.policy.dispatch.swap import Swaps
from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.units import Bools, Ints

_TRIALS = 4  # gangs for which places are sought in one round: each trial moves jobs to and fro
_SPARE = 8  # victims beyond a gang's own size that may be set aside while room is sought


def replace_some(
    valuation: Valuation, waiting: Ints, may_stop: Bools, *, factor: float, most: int
) -> Ints:
    """Preempt running jobs for waiting ones worth `factor` times as much; return who started.

    `waiting` is in order: by queue, then by worth. No job of an earlier queue is preempted for one
    of a later queue. `may_stop` (jobs,) says who may be preempted; a demand for which no place was
    found is not tried again.
    """
    rate, loads, of_queue = valuation.rate, valuation.loads, valuation.board.arrays.queue
    if not may_stop.any():
        return np.zeros(0, dtype=np.int64)
    may_stop = may_stop.copy()
    queue = _Queue(valuation, waiting, factor)
    least = rate[may_stop].min(initial=np.inf)
    new: list[int] = []
    refused: set[int] = set()
    tried = 0
    single = loads.gpus[waiting] == 1
    gangs = waiting[~single]
    swaps: Swaps | None = None  # of the board as it is now
    for job in waiting[~single | (rate[waiting] >= factor * least)].tolist():
        demand = int(loads.demand[job])
        if demand in refused:
            continue
        if len(refused) > most:
            break
        if loads.gpus[job] == 1:
            lower = of_queue >= of_queue[job]
            victims = np.flatnonzero(may_stop & lower & (rate <= rate[job] / factor))
            gone = _replace_one(valuation, job, _by_value(valuation, victims), queue)
        else:
            if swaps is None:
                after = gangs[int(np.flatnonzero(gangs == job)[0]) :]
                swaps = Swaps(valuation, may_stop, factor, _firsts(after, loads, refused))
            gone = None
            if tried < _TRIALS and swaps.pays(job):
                tried += 1
                victims = swaps.victims(job, 1 + _TRIALS - tried)
                gone = _replace_gang(valuation, job, victims, queue)
        if gone is None:
            refused.add(demand)
            continue
        new.append(job)
        queue.started(job)
        may_stop[gone] = False
        swaps = None
    return np.array(new, dtype=np.int64)


def _firsts(jobs: Ints, loads: JobColumns, refused: set[int]) -> Ints:
    """Return the first of `jobs` of each demand that is not refused, in their order."""
    demand, first = np.unique(loads.demand[jobs], return_index=True)
    return jobs[np.sort(first[~np.isin(demand, list(refused))])]


def take_turns(valuation: Valuation, turns: Ints, may_stop: Bools) -> Ints:
    """Start those of `turns` that wait, in place of those worth least; return who started.

    Those of `turns` that run keep their GPUs. `may_stop` (jobs,) is kept up to date.
    """
    board = valuation.board
    may_stop[turns] = False
    new: list[int] = []
    for job in turns[~board.on_gpus[turns]].tolist():
        victims = _by_value(valuation, np.flatnonzero(may_stop))
        count, place = _fewest(valuation, job, victims)
        if place is not None:
            _replace(valuation, job, victims[:count].tolist(), place, None)
            new.append(job)
            may_stop &= board.on_gpus
    return np.array(new, dtype=np.int64)


def _by_value(valuation: Valuation, jobs: Ints) -> Ints:
    """Return running jobs, first what yields least per GPU."""
    return jobs[np.lexsort((jobs, valuation.rate[jobs] * valuation.speed(jobs)))]


class _Queue:
    """The yield of the waiting jobs on GPUs that a victim leaves.

    A small job does not need all GPUs of a gang. The rest yields what the next jobs in the order
    that fit there yield; if it stays idle, the exchange loses more than it gains.
    """

    def __init__(self, valuation: Valuation, waiting: Ints, factor: float) -> None:
        self._size = valuation.loads.gpus[waiting]
        self._worth = valuation.rate[waiting] * self._size
        self._at = {job: index for index, job in enumerate(waiting.tolist())}
        self._waits = np.ones(len(waiting), dtype=np.bool_)
        self._factor = factor

    def started(self, job: int) -> None:
        """Note that a job waits no more."""
        self._waits[self._at[job]] = False

    def repays(self, job: int, gpus: int, lost: float, gained: float | None = None) -> bool:
        """Say whether `job` and those after it yield `factor` times `lost` on `gpus` GPUs.

        `gained` is what `job` itself yields there; without, what it yields alone.
        """
        at = self._at[job]
        gained = float(self._worth[at]) if gained is None else gained
        rest = gpus - int(self._size[at])
        if gained < self._factor * lost and rest > 0:
            after = at + 1 + np.flatnonzero(self._waits[at + 1 :])
            gained += float(self._worth[after[fits_in_order(self._size[after], rest)]].sum())
        return gained >= self._factor * lost


def _replace_one(valuation: Valuation, job: int, victims: Ints, queue: _Queue) -> list[int] | None:
    """Give `job`, of one GPU, the place of the victim that leaves most; return the victim."""
    if not len(victims):
        return None
    sizes = valuation.board.arrays.gpus[victims]
    large = np.flatnonzero(sizes > 1)
    if len(large):
        value = valuation.value(victims[large])
        repaid = [
            queue.repays(job, size, lost)
            for size, lost in zip(sizes[large].tolist(), value.tolist(), strict=True)
        ]
        victims = np.delete(victims, large[~np.array(repaid)])
        if not len(victims):
            return None
    best = valuation.in_place_of(job, victims)
    if best is None:
        return None
    victim, row = best
    valuation.board.stop(victim)
    valuation.board.start(job, np.array([row]))
    return [victim]


def _replace_gang(valuation: Valuation, job: int, victims: Ints, queue: _Queue) -> list[int] | None:
    """Start the gang with `victims` out of its way where that pays; return those preempted."""
    if not len(victims):
        return None
    gone = np.zeros(len(valuation.board.arrays), dtype=np.bool_)
    gone[victims] = True
    place = valuation.best_without(job, gone)
    if place is None:
        return None
    return _replace(valuation, job, _by_value(valuation, victims).tolist(), place, queue)


def _replace(
    valuation: Valuation, job: int, off: list[int], place: Ints, queue: _Queue | None
) -> list[int] | None:
    """Put the gang on `place` without the jobs `off`; those of them that can stay there stay.

    Return the preempted ones; None, and nothing is changed, where that does not pay. Without
    `queue`, it need not pay.
    """
    board = valuation.board
    there = {other for row in place.tolist() for other in board.residents_of[row]}
    concerned = sorted(there.union(off, *(board.partners(victim) for victim in off)))
    before = float(valuation.value(np.array(concerned)).sum())
    aside: list[Aside] = [board.set_aside(victim) for victim in off]
    board.place(job, place)
    gone: list[int] = []
    for one in reversed(aside):
        if valuation.gains_at(one.job, one.rows):
            board.place(one.job, one.rows)
        else:
            gone.append(one.job)
    stay = np.array([other for other in concerned if board.on_gpus[other]], dtype=np.int64)
    gained = float(valuation.value(np.array([job]))[0])
    lost = before - float(valuation.value(stay).sum())
    board.remove(job)
    freed = max(sum(int(board.arrays.gpus[left]) for left in gone), len(place))
    if queue is not None and not queue.repays(job, freed, lost, gained):
        for one in aside:
            if board.on_gpus[one.job]:
                board.remove(one.job)
        for one in reversed(aside):
            board.put_back(one)
        return None
    for left in gone:
        board.note_stop(left)
    board.start(job, place)
    return gone


def _fewest(valuation: Valuation, job: int, victims: Ints) -> tuple[int, Ints | None]:
    """Return how many of `victims`, the first ones, must leave until `job` fits, and where."""
    board = valuation.board
    held = np.cumsum(board.arrays.gpus[victims])
    wanted = int(board.jobs[job].gpus)
    gone = np.zeros(len(board.arrays), dtype=np.bool_)
    missing = wanted - len(valuation.open_rows())
    low = int(np.searchsorted(held, missing)) + 1
    high = min(len(victims), max(low, wanted + _SPARE + 1))
    if low > high:
        return 0, None

    def place(count: int) -> Ints | None:
        gone[:] = False
        gone[victims[:count]] = True
        return valuation.best_without(job, gone)

    # Most often the fewest, or one or two more, are enough.
    tried, step = low, 1
    while (found := place(tried)) is None:
        if tried == high:
            return 0, None
        low, tried, step = tried + 1, min(high, tried + step), step + 1
    high = tried
    while low < high:
        middle = (low + high) // 2
        there = place(middle)
        if there is None:
            low = middle + 1
        else:
            high, found = middle, there
    return high, found
