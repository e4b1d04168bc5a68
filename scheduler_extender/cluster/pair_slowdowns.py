"""Observed slowdowns of pairs of models, which are kept apart, and speeds of gangs by place. Pure.

What is learned replaces what is predicted (`Slowdowns`): planning weighs places by it, and where
two were too slow together the slowdown is infinite, by which filter, bind and planning refuse a
GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter

from tandem.policy.equations.tiresias import learned_pack_limit
from tandem.policy.votes import beyond_bound

#: Words of namespaces that are kept in all.
_MOST = 2000
_NEWEST = 0.3  # weight of a new word of the same namespace, or of the newest run
#: Above this skew a gang is kept on few nodes until more is known (the figure is ours).
PACK_LIMIT = 0.5
#: A gang that loses more than this share of its speed was hurt by being spread (ours).
_HURT = 0.1
#: Kinds of gangs that are kept for one namespace, and for all.
_OF_NAMESPACE, _IN_ALL = 16, 500

Pair = tuple[str, str]  # the kind that is slowed down, the kind next to it
GangKind = tuple[str, str, str, int]  # namespace, kind, type of GPU, GPUs of the gang


@dataclass(frozen=True, slots=True)
class Word:
    """A pair as one namespace's jobs have shown it; `measured` by agents, else by pods."""

    slowdown: float
    measured: bool
    at_s: float


class PairSlowdowns:
    """Slowdowns by pair and namespace. `version` grows with each change.

    A namespace's own jobs are placed by all that it has shown. Others believe what agents measured,
    the median over namespaces, so that one's word is one word; and each keeps a bounded number.
    Above `bound` two are kept apart.
    """

    def __init__(self, per_namespace: int = 64, bound: float = 0.35) -> None:
        self.version = 0
        self.bound = bound
        self._per_namespace = per_namespace
        self._words: dict[Pair, dict[str, Word]] = {}
        self._own: dict[str, dict[Pair, float]] = {}

    def __len__(self) -> int:
        return len(self._words)

    def enter(
        self,
        own: str,
        neighbour: str,
        namespace: str,
        slowdown: float,
        now_s: float,
        *,
        measured: bool,
    ) -> None:
        """Learn how much a job of kind `own` in `namespace` was slowed down by kind `neighbour`."""
        if not own or not neighbour:
            return
        words = self._words.setdefault((own, neighbour), {})
        known = words.get(namespace)
        if known is not None:
            now_s = max(now_s, known.at_s)
        if known is not None and known.measured == measured:
            slowdown = known.slowdown + _NEWEST * (slowdown - known.slowdown)
        elif known is not None and known.measured and slowdown <= known.slowdown:
            return  # a measurement counts for more than what pods report
        words[namespace] = Word(slowdown, measured, now_s)
        self._trim(namespace)
        self._changed()

    def part(
        self,
        own: str,
        neighbour: str,
        namespace: str,
        slowdown: float,
        now_s: float,
        *,
        measured: bool,
    ) -> None:
        """Learn of a pair that was parted: it is never believed to be better than that."""
        known = self._words.get((own, neighbour), {}).get(namespace)
        if known is not None and known.measured >= measured:
            slowdown = max(slowdown, known.slowdown)
            measured = known.measured
        if own and neighbour:
            self._words.setdefault((own, neighbour), {})[namespace] = Word(
                slowdown, measured, now_s
            )
            self._trim(namespace)
            self._changed()

    def believed(self, own: str, neighbour: str, namespace: str) -> float | None:
        """Return the slowdown of `own` next to `neighbour` that `namespace` believes."""
        words = self._words.get((own, neighbour), {})
        if namespace in words:
            return words[namespace].slowdown
        others = [word.slowdown for word in words.values() if word.measured]
        return median(others) if others else None

    def for_all(self) -> dict[Pair, float]:
        """Return what everybody is to believe; infinite where the two are to be kept apart."""
        found = {}
        for pair, words in self._words.items():
            measured = [word.slowdown for word in words.values() if word.measured]
            if measured:
                found[pair] = self._as_belief(median(measured))
        return found

    def of_namespace(self, namespace: str) -> Mapping[Pair, float]:
        """Return what a namespace's own jobs are to believe beyond that."""
        return self._own.get(namespace, {})

    def _as_belief(self, slowdown: float) -> float:
        return float("inf") if slowdown > self.bound else slowdown

    def _changed(self) -> None:
        self.version += 1
        self._own = {}
        for pair, namespace, word in self._all():
            self._own.setdefault(namespace, {})[pair] = self._as_belief(word.slowdown)

    def _trim(self, namespace: str) -> None:
        """Forget what a namespace said longest ago where it has said too much, then in all."""
        said = [(w[namespace].at_s, pair) for pair, w in self._words.items() if namespace in w]
        for _, pair in sorted(said)[: max(0, len(said) - self._per_namespace)]:
            self._forget(pair, namespace)
        every = sorted((word.at_s, pair, name) for pair, name, word in self._all())
        for pair, name in beyond_bound((((pair, name), name) for _, pair, name in every), _MOST):
            self._forget(pair, name)

    def _forget(self, pair: Pair, namespace: str) -> None:
        del self._words[pair][namespace]
        if not self._words[pair]:
            del self._words[pair]

    def _all(self) -> Iterator[tuple[Pair, str, Word]]:
        for pair, words in self._words.items():
            for namespace, word in words.items():
                yield pair, namespace, word

    def shed(self, rows: int) -> None:
        """Forget so many words, each of the namespace that has most.

        What its pods reported goes before what agents measured, the oldest first.
        """
        every = sorted((word.measured, word.at_s, pair, name) for pair, name, word in self._all())
        named = (((pair, name), name) for _, _, pair, name in every)
        for pair, name in beyond_bound(named, len(every) - rows):
            self._forget(pair, name)
        self._changed()

    # --- kept ------------------------------------------------------------------------------------

    def stored(self) -> list[list[Any]]:
        """Return all words as rows of JSON."""
        return [
            [*pair, namespace, round(word.slowdown, 3), word.measured, round(word.at_s, 3)]
            for pair, namespace, word in self._all()
        ]

    def merge(self, rows: list[list[Any]]) -> None:
        """Take in stored words; of two on the same pair and namespace the newer counts.

        Rows that were forgotten here may still be stored: no namespace gets more words by that.
        Raises ValueError, and takes in nothing, where they are no rows of words.
        """
        before = list(self._all())
        for own, neighbour, namespace, slowdown, measured, at_s in _WORDS.validate_python(rows):
            words: Mapping[str, Word] = self._words.get((own, neighbour), {})
            known = words.get(namespace)
            if known is None or round(known.at_s, 3) < at_s:
                word = Word(slowdown, measured, at_s)
                self._words.setdefault((own, neighbour), {})[namespace] = word
        for namespace in {name for _, name, _ in self._all()}:
            self._trim(namespace)
        if list(self._all()) != before:
            self._changed()


_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: As they are stored: two kinds of jobs, namespace, slowdown, whether it was measured, when.
_WORDS = TypeAdapter(list[tuple[str, str, str, _Finite, bool, _Finite]])
#: Namespace, kind, type of GPU, GPUs, and the fields of `_Speeds`.
_SPEEDS = TypeAdapter(list[tuple[str, str, str, int, _Finite, _Rate | None, _Rate | None, _Finite]])


@dataclass(slots=True)
class _Speeds:
    """Iterations per second of one kind of gang, alone on its GPUs; None where never seen."""

    skew: float
    on_few_nodes: float | None
    spread: float | None
    at_s: float


class PlacementHistory:
    """Speeds of gangs on as few nodes as they need, and spread over more.

    From both follows the skew above which a gang is kept on few nodes ([Tiresias] 3.3.2).
    Each namespace has a limit of its own: jobs report their own speed, and what one tenant reports
    must not decide where the gangs of another one run.

    `version` grows with each change, `limits_version` where a limit changes.
    """

    def __init__(self) -> None:
        self.version = self.limits_version = 0
        self._speeds: dict[GangKind, _Speeds] = {}
        self._limits: dict[str, float] = {}

    def limit(self, namespace: str) -> float:
        """Return the skew above which the gangs of a namespace are kept on few nodes."""
        return self._limits.get(namespace, PACK_LIMIT)

    def enter(
        self, of: GangKind, skew: float, iterations_per_s: float, now_s: float, *, spread: bool
    ) -> None:
        """Learn how fast a gang ran alone on its GPUs, spread over more nodes than it needs or not.

        `skew` is that of its model ([Tiresias] 3.3.1).
        """
        known = self._speeds.get(of) or _Speeds(skew, None, None, now_s)
        before = known.spread if spread else known.on_few_nodes
        new = iterations_per_s if before is None else before + _NEWEST * (iterations_per_s - before)
        if spread:
            self._speeds[of] = _Speeds(skew, known.on_few_nodes, new, now_s)
        else:
            self._speeds[of] = _Speeds(skew, new, known.spread, now_s)
        self._trim(of[0])
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        limits = {}
        for namespace in {of[0] for of in self._speeds}:
            both = [
                (each.skew, each.on_few_nodes / each.spread - 1)
                for of, each in self._speeds.items()
                if of[0] == namespace and each.on_few_nodes and each.spread
            ]
            skew, slowdown = np.array(both).reshape(-1, 2).T
            limits[namespace] = learned_pack_limit(skew, slowdown, _HURT, PACK_LIMIT)
        limits = {name: limit for name, limit in limits.items() if limit != PACK_LIMIT}
        if limits != self._limits:
            self._limits = limits
            self.limits_version += 1

    def _trim(self, namespace: str) -> None:
        """Forget the kinds unseen for longest beyond what is kept, of a namespace, then in all."""
        own = [of for of in self._speeds if of[0] == namespace]
        self._forget(own, _OF_NAMESPACE)
        self._forget(list(self._speeds), _IN_ALL)

    def _forget(self, kinds: list[GangKind], most: int) -> None:
        oldest = sorted(kinds, key=lambda of: (self._speeds[of].at_s, of))
        for of in beyond_bound(((of, of[0]) for of in oldest), most):
            del self._speeds[of]

    # --- kept ------------------------------------------------------------------------------------

    def shed(self, rows: int) -> None:
        """Forget so many kinds, each of the namespace that has most, the one unseen for longest."""
        self._forget(list(self._speeds), len(self._speeds) - rows)
        self._changed()

    def stored(self) -> list[Any]:
        """Return all speeds as rows of JSON."""
        return [[*of, *astuple(each)] for of, each in self._speeds.items()]

    def merge(self, rows: list[Any]) -> None:
        """Take in stored speeds; of two of one kind the newer count. Bounded as what is entered.

        Raises ValueError, and takes in nothing, where they are no rows of speeds.
        """
        before = dict(self._speeds)
        for namespace, kind, gpu_model, gpus, *values in _SPEEDS.validate_python(rows):
            of, speeds = (namespace, kind, gpu_model, gpus), _Speeds(*values)  # type: ignore[arg-type] # as _SPEEDS says
            known = self._speeds.get(of)
            if known is None or known.at_s < speeds.at_s:
                self._speeds[of] = speeds
        for namespace in {of[0] for of in self._speeds}:
            self._trim(namespace)
        if self._speeds != before:
            self._changed()
