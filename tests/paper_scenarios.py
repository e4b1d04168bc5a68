"""One scenario for each system of the papers, which only that system decides as it does.

A scenario is data: GPUs of one node, kinds of jobs with their predicted loads and slowdowns, and a
course of events with what is to be seen. The course runs on the API server in memory under every
profile, and on a control plane under its own profile and the one that is nearest to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.contracts.prediction import InterferenceAnswer, PairSlowdown, Prediction
from tandem.contracts.resources import Load, Source
from tandem.policy.catalog import Profile, load_profile

GIB = 1 << 30
#: Model and bytes of the GPUs on which the scenarios go as their courses say.
BOARD = ("NVIDIA A100", 80 * GIB)
#: A GPU is the jobs on it. What is seen is the GPUs in use, whichever they are.
Seen = frozenset[frozenset[str]]


@dataclass(frozen=True)
class Kind:
    """What a worker uses of a GPU; an iteration takes a second alone."""

    percent: float = 20.0
    base_gib: float = 4.0
    extra_gib: float = 0.0
    p: float = 0.0


@dataclass(frozen=True)
class Submit:
    """A job of a kind is created; it saves checkpoints."""

    name: str
    kind: str
    iterations: int = 1000
    accumulation: bool = False

    @property
    def annotations(self) -> dict[str, str]:
        """As a user writes them."""
        return {
            "tandem.gpu/model": self.kind,
            "tandem.gpu/batch-size": "32",
            "tandem.gpu/iterations": str(self.iterations),
            "tandem.gpu/checkpoint": "true",
            "tandem.gpu/accumulation": str(self.accumulation).lower(),
        }


@dataclass(frozen=True)
class Pass:
    """Time passes, so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Ends:
    """A job comes to its end."""

    job: str


@dataclass(frozen=True)
class Known:
    """The agents come to know how fast a job runs alone."""

    job: str


@dataclass(frozen=True)
class Slow:
    """From now on a job is measured to be slower next to another one, by so much."""

    job: str
    slowdown: float
    neighbour: str


@dataclass(frozen=True)
class Look:
    """What the system's own rules lead to by now.

    `instead` is what the nearest other profile leads to, where the two part.
    """

    gpus: tuple[str, ...]  # each the names of its jobs, in alphabetical order
    instead: tuple[str, ...] = ()

    def under(self, nearest: bool = False) -> Seen:
        """Return the jobs on each GPU in use: of the system itself, or of the nearest other one."""
        return jobs_by_gpu(self.instead if nearest and self.instead else self.gpus)


def jobs_by_gpu(gpus: tuple[str, ...]) -> Seen:
    """Return the jobs on each GPU, from their names joined by `+`."""
    return frozenset(frozenset(each.split("+")) for each in gpus)


Event = Submit | Pass | Ends | Known | Slow | Look


@dataclass(frozen=True)
class Scenario:
    """What only `system` decides like this, with the paper's section."""

    system: str
    section: str
    nearest: str  # the other profile that goes with it furthest
    gpus: int
    kinds: Mapping[str, Kind]
    course: tuple[Event, ...]
    slowdown: Mapping[tuple[str, str], float] = field(default_factory=dict)
    order: Mapping[str, Any] = field(default_factory=dict)  # of the profile, for a short course
    adjust: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[float, ...] = ()  # GPU-seconds of jobs that have ended

    def profile(self, name: str) -> Profile:
        """Return a shipped profile; its own thresholds and intervals are those of the scenario."""
        profile = load_profile(name)
        changes: dict[str, Any] = {}
        if name.partition("-")[0] == self.system.partition("-")[0] and self.order:
            changes["order"] = profile.order.model_copy(update=dict(self.order))
        if profile.adjust is not None and self.adjust:
            changes["adjust"] = profile.adjust.model_copy(update=dict(self.adjust))
        return profile.model_copy(update=changes)

    def load(self, model: str, steps: int = 1) -> Prediction:
        """Return what a predictor says of a job of a kind; activations are half its memory."""
        kind = self.kinds[model]
        factor = 0.5 + 0.5 / steps
        base, extra = (int(each * factor * GIB) for each in (kind.base_gib, kind.extra_gib))
        said = Load(
            utilisation_percent=kind.percent, utilisation_p95_percent=kind.percent,
            memory_base_bytes=base, memory_peak_extra_bytes=extra, peak_probability=kind.p,
            memory_p95_bytes=base + extra, utilisation_source=Source.MODEL,
            memory_source=Source.FORMULA, feature_hash=model,
            iteration_s=1.0 / steps, compute_share=kind.percent / 100, bandwidth_share=0.1,
        )  # fmt: skip
        return Prediction(load=said, explanation="as the scenario says")

    def price(self, job: Load, candidates: list[Load]) -> InterferenceAnswer:
        """Return what a predictor says of pairs."""
        pairs = [
            PairSlowdown(
                job_slowdown=self._slowdown(job, each), partner_slowdown=self._slowdown(each, job)
            )
            for each in candidates
        ]
        return InterferenceAnswer(pairs=pairs, source=Source.MODEL)

    def _slowdown(self, one: Load, neighbour: Load) -> float:
        return self.slowdown.get((one.feature_hash, neighbour.feature_hash), 0.05)


def _both(slowdown: float, *pairs: tuple[str, str]) -> dict[tuple[str, str], float]:
    return {each: slowdown for a, b in pairs for each in ((a, b), (b, a))}


#: GPU-seconds after which a job goes to the second queue: far more than a control plane takes to
#: start a pod.
_THRESHOLD = 12
_TIRESIAS: dict[str, Any] = {
    "gpus": 1,
    "kinds": {"m": Kind(percent=90, base_gib=20)},
    "order": {"thresholds_gpu_s": (float(_THRESHOLD),)},
    # Four of five jobs need a few seconds, the fifth far more.
    "history": (3.0, 3.0, 4.5, 6.0, 300.0),
}
_OVER_THE_THRESHOLD = (
    Submit("a", "m", iterations=60), Pass(_THRESHOLD + 2), Look(("a",)),
    # Over the threshold it gives way to one that has had nothing, though it is shorter.
    Submit("b", "m", iterations=9000), Pass(3), Look(("b",)),
    Submit("c", "m", iterations=15), Pass(2),
)  # fmt: skip

_TWO = {"jobs_a_round": 2}
_ALIKE = tuple(each for i in range(1, 7) for each in (Submit(f"x{i}", "alike"), Pass(1)))
_HORUS: dict[str, Any] = {
    "gpus": 2,
    "kinds": {
        "busy": Kind(99, 32), "wall": Kind(10, 75), "odd": Kind(30, 50.5),
        "alike": Kind(25, 51), "big": Kind(35, 51), "new": Kind(40, 6),
    },
    "slowdown": _both(0.9, ("odd", "new"), ("alike", "new")),
    "order": _TWO,
}  # fmt: skip
_ONE_HAS_WAITED_LONGEST = (
    Submit("busy", "busy"), Pass(1), Submit("wall", "wall"), Pass(1), Look(("busy", "wall")),
    # The last needs most, so that those who pack by demand take neither of the two.
    Submit("odd", "odd"), Pass(1), *_ALIKE, Submit("big", "big"), Pass(3), Ends("wall"), Pass(2),
)  # fmt: skip

_OJPP: dict[str, Any] = {
    "gpus": 2,
    # No agent reports a slowdown on a GPU that is idle for a third of the time.
    "kinds": {
        "calm": Kind(25, 8, 4, 0.02), "peaky": Kind(44, 8, 40, 0.5), "light": Kind(25, 3),
        "burst": Kind(5, 8, 40, 0.5), "harsh": Kind(20, 8),
    },
    "slowdown": _both(
        0.3, ("harsh", "calm"), ("harsh", "peaky"), ("harsh", "light"), ("harsh", "burst")
    ),
    "adjust": {"every_s": 5.0},
}  # fmt: skip
_PACKED_AND_SLOW = (
    Submit("a", "peaky"), Known("a"), Look(("a",)),
    Submit("d", "calm"), Pass(1), Submit("e", "light"), Pass(1), Look(("a+d+e",)),
    # By Eq. 5 a second job with peaks opens a GPU, by Eq. 7 no job joins the harsh one.
    Submit("b", "burst"), Pass(1), Look(("a+d+e", "b")),
    Submit("c", "harsh"), Pass(2), Look(("a+d+e", "b")),
    Slow("a", 0.6, "e"), Pass(60),
)  # fmt: skip

_XONAR: dict[str, Any] = {
    "gpus": 1,
    "kinds": {
        "wall": Kind(90, 79), "heavy": Kind(75, 20), "same": Kind(75, 10), "fit": Kind(20, 10),
        "tiny": Kind(5, 2),
    },
    "slowdown": _both(3.0, ("heavy", "fit")) | _both(0.1, ("heavy", "same"), ("heavy", "tiny")),
}  # fmt: skip
_PEAKS_THAT_DO_NOT_FIT = (
    Submit("wall", "wall"), Pass(1), Submit("head", "heavy"), Pass(1), Submit("next", "same"),
    Pass(1), Submit("last", "fit"), Pass(1), Submit("tiny", "tiny"), Pass(1),
)  # fmt: skip

SCENARIOS = (
    Scenario(
        "tiresias-l",
        "3.2.2, 3.2.3: least attained service in discrete queues, first in first out in each.",
        "tiresias-g",
        course=(
            *_OVER_THE_THRESHOLD,
            # Within a queue the first stays, though a newcomer is shorter still.
            Look(("b",), instead=("c",)),
            Pass(_THRESHOLD), Look(("c",)),
        ),
        **_TIRESIAS,
    ),
    Scenario(
        "tiresias-g",
        "3.2.2, 3.2.3: the Gittins index of the service so far, inside the first queue.",
        "tiresias-l",
        course=(
            *_OVER_THE_THRESHOLD,
            # Most jobs end within seconds: one that has not is less likely to than a new one.
            Look(("c",), instead=("b",)),
        ),
        **_TIRESIAS,
    ),
    Scenario(
        "horus",
        "4.2.1, Eq. 7-10; 4.2.2: longest wait first, to the GPU of least cost.",
        "horus-f",
        course=(
            *_ONE_HAS_WAITED_LONGEST,
            Look(("busy", "odd"), instead=("busy", "x1")),
            # The GPU with less memory in use would be more than fully utilised.
            Submit("new", "new"), Pass(1), Look(("busy", "new+odd")),
        ),
        **_HORUS,
    ),
    Scenario(
        "horus-f",
        "4.2.2, Alg. 1: a queue of many alike jobs is served before one that has waited longer.",
        "horus",
        course=(
            *_ONE_HAS_WAITED_LONGEST,
            Look(("busy", "x1"), instead=("busy", "odd")),
            Submit("new", "new"), Pass(1), Look(("busy", "new+x1")),
        ),
        **_HORUS,
    ),
    Scenario(
        "ojpp",
        "3.2, 3.3, Eq. 3-7: as many jobs as the bounds on collision and interference allow.",
        "ojpap",
        course=(
            *_PACKED_AND_SLOW,
            # It has no repair: that is OJPAP's.
            Look(("a+d+e", "b"), instead=("a+d", "b+e")),
        ),
        **_OJPP,
    ),
    Scenario(
        "ojpap",
        "4.4, Alg. 4: over the bound, the worker of least cost moves to the GPU with most room.",
        "ojpp",
        course=(
            *_PACKED_AND_SLOW,
            Look(("a+d", "b+e"), instead=("a+d+e", "b")),
        ),
        **_OJPP,
    ),
    Scenario(
        "sjf-bsbf",
        "V-A, Theorem 1; V-B, Alg. 2: share with sub-batches where that beats waiting, else wait.",
        "sjf-ffs",
        gpus=2,
        kinds={"large": Kind(60, 40), "small": Kind(60, 10), "eager": Kind(50, 50)},
        slowdown=_both(9.0, ("small", "small"), ("eager", "small"), ("large", "small"))
        | _both(0.1, ("large", "eager")),
        course=(
            Submit("long", "large", 5000), Pass(1), Submit("short", "small", 1000), Pass(1),
            Look(("long", "short")),
            Submit("n", "eager", 100, accumulation=True), Pass(1), Look(("long+n", "short")),
            Submit("w", "small", 1000), Pass(2),
            Look(("long+n", "short"), instead=("long+n", "short+w")),
        ),
    ),
    Scenario(
        "xonar",
        "III-B, Eq. 1: the head of the queue picks the partner whose active fits its idle time.",
        "xonar-fifo-pairs",
        course=(
            *_PEAKS_THAT_DO_NOT_FIT,
            Look(("wall",), instead=("head+wall",)),
            Ends("wall"), Pass(2), Look(("head+last",)),
        ),
        **_XONAR,
    ),
    Scenario(
        "xonar-fifo-pairs",
        "II-A, IV: the baseline pairs jobs in the order of arrival, whatever they need.",
        "xonar",
        course=(
            *_PEAKS_THAT_DO_NOT_FIT,
            Look(("head+wall",), instead=("wall",)),
            Ends("wall"), Pass(2), Look(("head+next",)),
        ),
        **_XONAR,
    ),
    Scenario(
        "pab",
        "5.2, PAB: packs by memory, and a newcomer at half its speed after a warm-up waits again.",
        "obp",
        gpus=1,
        kinds={"m": Kind(60, 10)},
        slowdown={("m", "m"): 9.0},
        # The paper's minute is the profile's; it looks at each newcomer between one and two of it.
        adjust={"every_s": 12.0},
        course=(
            # How fast a newcomer would be alone is known of an earlier run of a minute.
            Submit("first", "m"), Known("first"), *[Pass(15)] * 4, Look(("first",)),
            Ends("first"), Pass(2),
            Submit("a", "m"), Pass(1), Look(("a",)),
            Submit("b", "m"), Pass(1), Look(("a+b",)),
            Slow("b", 2.0, "a"), Pass(30), Look(("a",), instead=("a+b",)),
        ),
    ),
)  # fmt: skip
