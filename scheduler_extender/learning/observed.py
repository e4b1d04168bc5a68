"""The speed of each pod now, and its speed alone, from the agents' reports. Pure.

Two measures: iterations per second as the pod itself reports them, and the share of the GPU's time
that its kernels get, as the agent measures it. The first is exact, and a pod may claim any value;
the second is an estimate that no pod can raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduler_extender.cluster.records import GpuNodeRecord
from tandem.contracts.learning import Means, ObservedSlowdown, Reference
from tandem.contracts.resources import GPU, PodUse
from tandem.contracts.values import at_least
from tandem.policy.equations.observed import observed_slowdown

#: A GPU that is busy for less than this slows no job down.
CONTENDED_PERCENT = 70.0
#: Utilisation below this is too coarse to compare.
LEAST_PERCENT = 5.0
#: A report counts for the time since the one before, but not for a silence.
LONGEST_S = 90.0
#: What a slowdown can be measured to be at most.
MOST = 20.0
_NEWEST = 0.5  # weight of the newest report in a reference
_SM_ACTIVITY = "gpm"  # measures something else than a process's utilisation

Rates = Mapping[Means, float]
GpuKey = tuple[str, str]  # node, UUID
#: Neighbourhoods of one pod that wait for its time alone.
_UNMEASURED = 8


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The kinds of jobs next to a pod, and how much each is expected to slow it down."""

    kinds: tuple[str, ...]
    expected: tuple[float, ...]


@dataclass(slots=True)
class Watched:
    """One pod on one GPU: its rates alone and now, its memory, its time with neighbours."""

    uid: str
    at: GpuKey
    gpu_model: str
    use: PodUse
    busy_percent: float = 0.0
    others: frozenset[str] = frozenset()
    since_s: float = 0.0  # when those came together
    seen_s: float = 0.0
    observed_s: float = 0.0  # how long it has been seen in all
    solo: dict[Means, float] = field(default_factory=dict)
    now: dict[Means, float] = field(default_factory=dict)
    activity: tuple[float, float] | None = None  # active and idle seconds while it was alone
    seconds_with: dict[str, float] = field(default_factory=dict)  # seconds together, by uid
    settled: bool = False  # its averages no longer know the time before its neighbours came
    # Neighbours by their kinds, and its rates next to them, while there is nothing to compare with.
    unmeasured: dict[tuple[str, ...], tuple[Neighbours, Rates]] = field(default_factory=dict)

    def slowdown(self, means: Means, history: Rates, predicted: Rates) -> ObservedSlowdown | None:
        """Return how much slower it runs than alone; None where that cannot be known.

        The best reference is its own time alone, then that of earlier runs, then the prediction.
        """
        rate = self._contended().get(means) if self.others else None
        if rate is None:
            return None
        references = ((Reference.SOLO, self.solo), (Reference.HISTORY, history),
                      (Reference.PREDICTED, predicted))  # fmt: skip
        for reference, rates in references:
            if means in rates:
                return _slowdown(rate, rates[means], means, reference)
        return None

    def note(self, neighbours: Neighbours) -> None:
        """Keep how fast it is next to its neighbours, to be compared once it has been alone."""
        rates = self._contended()
        if not self.settled or not neighbours.kinds or not rates:
            return
        if len(self.unmeasured) < _UNMEASURED or neighbours.kinds in self.unmeasured:
            self.unmeasured[neighbours.kinds] = neighbours, rates

    def measured_late(self) -> list[tuple[Neighbours, ObservedSlowdown]]:
        """Return how slow it was next to earlier neighbours, now that it has been alone."""
        found = []
        for neighbours, rates in list(self.unmeasured.values()):
            means = next((each for each in Means if each in rates and each in self.solo), None)
            if means is None:
                continue
            del self.unmeasured[neighbours.kinds]
            value = _slowdown(rates[means], self.solo[means], means, Reference.SOLO)
            if value is not None:
                found.append((neighbours, value))
        return found

    def _contended(self) -> Rates:
        """Return its rates now that differ from those on a GPU of its own."""
        if self.busy_percent >= CONTENDED_PERCENT:
            return self.now
        return {means: rate for means, rate in self.now.items() if means is Means.PROGRESS}


class Watch:
    """All pods that the agents report, by uid and GPU.

    After its neighbours have left or come, a pod's averages know the time before for `settle_s`.
    `is_there` says of a pod (uid), a node and a GPU whether the pod was placed there; a pod of
    which a node reports without that is a stranger.
    """

    def __init__(
        self, settle_s: float, is_there: Callable[[str, str, str], bool] = lambda *_: True
    ) -> None:
        self._settle_s = settle_s
        self._is_there = is_there
        self.pods: dict[tuple[str, GpuKey], Watched] = {}
        self.shared: dict[GpuKey, frozenset[str]] = {}  # GPUs with two pods or more: their uids
        self._of_node: dict[str, set[tuple[str, GpuKey]]] = {}

    def of_pod(self, uid: str, gpus: tuple[GpuKey, ...]) -> list[Watched]:
        """Return what is known of a pod on each of its GPUs."""
        return [self.pods[uid, gpu] for gpu in gpus if (uid, gpu) in self.pods]

    def take(self, record: GpuNodeRecord) -> None:
        """Take in a node's report; pods that it no longer names are forgotten."""
        seen = set()
        for gpu in record.status.gpus:
            at = (record.name, gpu.uuid)
            running = {use.uid: use for use in gpu.pods if _runs(use)}
            present = {uid: use for uid, use in running.items() if self._is_there(uid, *at)}
            if len(present) > 1:
                self.shared[at] = frozenset(present)
            else:
                self.shared.pop(at, None)
            unknown = len(present) < len(running) or any(
                use.foreign and use.memory_bytes != 0 for use in gpu.pods
            )
            for uid, use in present.items():
                others = frozenset(present.keys() - {uid}) | ({""} if unknown else frozenset())
                key = (uid, at)
                seen.add(key)
                watched = self.pods.get(key)
                if watched is None:
                    watched = self.pods[key] = Watched(uid, at, gpu.model, use)
                    watched.since_s = watched.seen_s = record.observed_at_s
                self._take(watched, use, gpu, others, record.observed_at_s)
        self._drop(self._of_node.get(record.name, set()) - seen)
        self._of_node[record.name] = seen

    def node_gone(self, node: str) -> None:
        """Forget a node."""
        self._drop(self._of_node.pop(node, set()))

    def _drop(self, keys: set[tuple[str, GpuKey]]) -> None:
        for key in keys:
            self.pods.pop(key, None)
            if len(self.shared.get(key[1], frozenset()) - {key[0]}) < 2:
                self.shared.pop(key[1], None)

    def _take(
        self, watched: Watched, use: PodUse, gpu: GPU, others: frozenset[str], at_s: float
    ) -> None:
        passed = min(max(0.0, at_s - watched.seen_s), LONGEST_S)
        watched.observed_s += passed
        for other in watched.others & others:
            watched.seconds_with[other] = watched.seconds_with.get(other, 0.0) + passed
        if others != watched.others:
            watched.others, watched.since_s = others, at_s
        watched.use, watched.seen_s = use, at_s
        watched.busy_percent = gpu.utilisation_percent or 0.0
        rates: dict[Means, float] = {}
        if use.iterations_per_second is not None:
            rates[Means.PROGRESS] = use.iterations_per_second
        comparable = others or gpu.utilisation_source != _SM_ACTIVITY
        if use.utilisation_percent is not None and comparable:
            rates[Means.UTILISATION] = use.utilisation_percent
        watched.now = rates
        watched.settled = at_s - watched.since_s >= self._settle_s
        if others or not watched.settled:
            return
        if use.active_seconds is not None and use.idle_seconds is not None:
            watched.activity = (use.active_seconds, use.idle_seconds)
        for means, rate in rates.items():
            known = watched.solo.get(means, rate)
            watched.solo[means] = at_least(known + _NEWEST * (rate - known))


def _slowdown(
    rate: float, alone: float, means: Means, reference: Reference
) -> ObservedSlowdown | None:
    estimated = means is Means.UTILISATION
    if alone <= (LEAST_PERCENT if estimated else 0.0):
        return None
    value = observed_slowdown(alone, max(rate, alone / (1 + MOST)))
    return ObservedSlowdown(
        value=round(value, 3), means=means, reference=reference, estimated=estimated
    )


def _runs(use: PodUse) -> bool:
    """Tell a pod of ours that is there from one that has left, and from strangers."""
    return bool(use.uid) and not use.foreign and use.memory_bytes != 0
