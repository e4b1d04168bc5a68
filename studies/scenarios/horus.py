"""[Horus] Yeung et al., TPDS 2021: the cheapest GPUs, and fair picks from queues of alike jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from studies.scenarios.model import Asks, Scenario, gpus

_HORUS: dict[str, Any] = {"paper": "Horus", "profile": "horus"}
_FAIR: dict[str, Any] = {"paper": "Horus", "profile": "horus-f"}
_TWO = gpus(2)
#: Rounds of two jobs instead of fifteen.
_SHORT: dict[str, Any] = {
    "settings": {"order": {"jobs_a_round": 2}, "dispatch": {"jobs_a_round": 2}}
}


def _wall(seconds: float, count: int = 1) -> Asks:
    """Return a job that shares its GPU with no other job."""
    return Asks("wall", 0, seconds, gpus=count, base_gib=79)


def _alike(count: int, at_s: float, **asked: float) -> tuple[Asks, ...]:
    return tuple(replace(Asks("", **asked), name=f"x{i}", at_s=at_s + i) for i in range(count))


SCENARIOS = (
    Scenario(
        name="the least memory in use",
        section="4.2.1, Eq. 7, 8",
        decides="Of two GPUs that are equally busy, the one with less memory in use is cheaper.",
        nodes=_TWO,
        jobs=(
            Asks("a", percent=30, base_gib=60),
            Asks("b", 1, percent=30, base_gib=10),
            Asks("new", 2, base_gib=5),
        ),
        looks={3: "a b+new"},
        **_HORUS,
    ),
    Scenario(
        name="the least utilisation",
        section="4.2.1, Eq. 7, 9, 10",
        decides="Of two GPUs with equal memory in use, the one that is less busy is cheaper.",
        nodes=_TWO,
        jobs=(Asks("a", percent=60), Asks("b", 1, percent=30), Asks("new", 2, percent=30)),
        looks={3: "a b+new"},
        **_HORUS,
    ),
    Scenario(
        name="memory and utilisation weigh the same",
        section="4.2.1, Eq. 7",
        decides="A fifth of the memory more costs 0.2, 60 points of utilisation below 100 % cost"
        " 0.14.",
        nodes=_TWO,
        jobs=(
            Asks("busy", percent=80, base_gib=5),
            Asks("large", 1, percent=20, base_gib=21),
            Asks("new", 2, percent=20, base_gib=5),
        ),
        looks={3: "busy+new large"},
        **_HORUS,
    ),
    Scenario(
        name="over-commitment costs more the further it goes",
        section="4.2.1, Eq. 9",
        decides="At 190 % against 110 % the quadratic costs 0.79 more, and outweighs 40 % of the"
        " memory; a line would cost 0.18 more.",
        nodes=_TWO,
        jobs=(
            Asks("busy", percent=95, base_gib=5),
            Asks("large", 1, percent=15, base_gib=37),
            Asks("new", 2, percent=95, base_gib=5),
        ),
        looks={3: "busy large+new"},
        **_HORUS,
    ),
    Scenario(
        name="below 100 % the cost is a line",
        section="4.2.1, Eq. 9, Fig. 4",
        decides="From 40 % to 100 % the line costs 0.14 more, which an eighth of the memory does"
        " not outweigh; the quadratic below its minimum would cost 0.11.",
        nodes=_TWO,
        jobs=(
            Asks("busy", percent=80, base_gib=10),
            Asks("large", 1, percent=20, base_gib=20),
            Asks("new", 2, percent=20, base_gib=5),
        ),
        looks={3: "busy large+new"},
        **_HORUS,
    ),
    Scenario(
        name="the curve is that of the GPU type",
        section="4.2.1, Eq. 9, Fig. 4",
        decides="At 180 % a GTX 1080 costs 1.956 and an RTX 2080 1.919; at 110 % 1.247 and 1.318.",
        nodes=(*gpus(1, gib=8, kind="GTX1080"), *gpus(1, gib=8, kind="RTX2080")),
        jobs=(
            Asks("a", percent=90, base_gib=1),
            Asks("b", 1, 50, percent=90, base_gib=1),
            Asks("new", 2, 30, percent=90, base_gib=1),
            Asks("later", 40, percent=20, base_gib=1),
        ),
        looks={3: "a b+new", 41: "a+later b"},
        **_HORUS,
    ),
    Scenario(
        name="the memory in use is that of all residents in their peaks",
        section="4.2.1, Eq. 8",
        decides="The estimate of a job is its peak: 40 GiB and 30 GiB are more than 35 GiB and 30"
        " GiB, though bases and one peak would be less.",
        nodes=_TWO,
        jobs=(
            Asks("peaks", base_gib=20, extra_gib=20),
            Asks("flat", 1, base_gib=35),
            Asks("new", 2, base_gib=10, extra_gib=20),
        ),
        looks={3: "peaks flat+new"},
        **_HORUS,
    ),
    Scenario(
        name="memory within the GPU",
        section="4.2.1, Eq. 5; Alg. 1, lines 7-8",
        decides="A job whose memory does not fit waits.",
        jobs=(Asks("a", 0, 100, base_gib=45), Asks("b", 1, base_gib=45)),
        looks={2: "a", 101: "b"},
        **_HORUS,
    ),
    Scenario(
        name="memory includes every peak",
        section="4.1.2, Eq. 2, 5",
        decides="The estimate of a job is its peak, so that two peaks that do not fit together do"
        " not share, though one would fit.",
        jobs=(
            Asks("a", 0, 100, base_gib=30, extra_gib=20, p=0.05),
            Asks("b", 1, base_gib=20, extra_gib=20, p=0.05),
        ),
        looks={2: "a", 101: "b"},
        **_HORUS,
    ),
    Scenario(
        name="utilisation may be over-committed",
        section="3.2, 4.2.1, Eq. 9",
        decides="More than 100 % of utilisation has a cost and is no limit.",
        jobs=(Asks("a", percent=95), Asks("b", 1, percent=95)),
        looks={2: "a+b"},
        **_HORUS,
    ),
    Scenario(
        name="the cheapest GPUs of a gang",
        section="Alg. 1, lines 14-18",
        decides="A gang of two takes the two cheapest GPUs, wherever they are.",
        nodes=gpus(2, 2),
        jobs=(
            Asks("a", percent=50),
            Asks("b", 1, 20, gpus=2),
            Asks("c", 2, percent=50),
            Asks("g", 30, gpus=2),
        ),
        looks={3: "a b b c", 31: "a g g c"},
        **_HORUS,
    ),
    Scenario(
        name="fifteen jobs a round",
        section="4.2.2; 5.2 (beta = 15)",
        decides="The sixteenth job is not considered while none of the fifteen before it starts.",
        jobs=(
            *(Asks(f"gang{i:02}", 0.01 * i, gpus=2, percent=20 + i) for i in range(15)),
            Asks("one", 1),
        ),
        looks={2: "-"},
        **_HORUS,
    ),
    Scenario(
        name="the fifteenth job is considered",
        section="4.2.2; 5.2 (beta = 15)",
        decides="A job behind fourteen for which there is no room starts.",
        jobs=(
            *(Asks(f"gang{i:02}", 0.01 * i, gpus=2, percent=20 + i) for i in range(14)),
            Asks("one", 1),
        ),
        looks={2: "one"},
        **_HORUS,
    ),
    Scenario(
        name="the longest wait first",
        section="4.2.2 (picking jobs)",
        decides="Of the jobs that wait, the one that has waited longest is picked first, whatever"
        " it needs.",
        jobs=(_wall(100), Asks("first", 1, base_gib=50), Asks("small", 2, base_gib=45, percent=95)),
        looks={50: "wall", 101: "first"},
        **_HORUS,
    ),
    Scenario(
        name="from eight GPUs on one node first",
        section="4.2.3 (locality)",
        decides="A gang of eight goes to one node before the cheapest GPUs.",
        nodes=gpus(8, 8),
        jobs=(Asks("a", base_gib=70), Asks("g", 1, gpus=8, base_gib=20)),
        looks={2: "a - - - - - - - g g g g g g g g"},
        **_HORUS,
    ),
    Scenario(
        name="below eight GPUs by cost alone",
        section="4.2.3 (locality)",
        decides="A gang of seven takes the cheapest GPUs of two nodes.",
        nodes=gpus(8, 8),
        jobs=(Asks("a", gpus=4), Asks("g", 1, gpus=7)),
        looks={2: "a a a a g g g g g g g - - - - -"},
        **_HORUS,
    ),
    Scenario(
        name="from eight GPUs on one rack first",
        section="4.2.3 (locality)",
        decides="A gang of eight that no node holds goes to one rack.",
        nodes=gpus(4, 4, 4, 4),
        nodes_per_rack=2,
        jobs=(Asks("a", base_gib=70), Asks("g", 1, gpus=8, base_gib=20)),
        looks={2: "a - - - - - - - g g g g g g g g"},
        **_HORUS,
    ),
    Scenario(
        name="locality makes no job wait",
        section="4.2.3 (locality)",
        decides="A gang of eight that no node holds, and no rack, runs on what there is.",
        nodes=gpus(8, 8),
        jobs=(
            Asks("a", 0, gpus=4, base_gib=70),
            Asks("b", 1, 9, gpus=4, base_gib=70),
            Asks("c", 2, gpus=4, base_gib=70),
            Asks("g", 20, gpus=8, base_gib=20),
        ),
        looks={3: "a a a a b b b b c c c c - - - -", 21: "a a a a g g g g c c c c g g g g"},
        **_HORUS,
    ),
    Scenario(
        name="two jobs on a GPU",
        section="4.3 (over-commitment threshold by the number of jobs)",
        decides="A GPU with two jobs takes no third, whatever it would cost.",
        jobs=(Asks("a"), Asks("b", 1), Asks("c", 2)),
        looks={3: "a+b"},
        **_HORUS,
    ),
    Scenario(
        name="running jobs stay",
        section="4.2.2, Alg. 1",
        decides="A cheaper job that comes later takes the place of none that runs.",
        jobs=(Asks("a", 0, 5000, base_gib=60, percent=90), Asks("b", 1, base_gib=30, percent=5)),
        looks={2: "a", 4000: "a"},
        **_HORUS,
    ),
    # --- Horus-f ---------------------------------------------------------------------------------
    Scenario(
        name="one queue is by wait alone",
        section="5.2 (Horus, k = 1)",
        decides="With one queue the job that has waited longest goes first, though six alike wait"
        " behind it.",
        jobs=(
            _wall(100),
            Asks("odd", 1, base_gib=50, percent=95),
            *_alike(6, 10, base_gib=50, percent=5),
        ),
        looks={99: "wall", 101: "odd"},
        **_SHORT,
        **_HORUS,
    ),
    Scenario(
        name="alike by utilisation",
        section="4.2.2, feature 2; Alg. 1, lines 2-4",
        decides="Six jobs that differ from an older one in their utilisation are a queue, which is"
        " served first.",
        jobs=(
            _wall(100),
            Asks("odd", 1, base_gib=50, percent=95),
            *_alike(6, 10, base_gib=50, percent=5),
        ),
        looks={99: "wall", 101: "x0"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="alike by memory",
        section="4.2.2, feature 4",
        decides="Six jobs that differ from an older one in their memory are a queue, which is"
        " served first.",
        jobs=(_wall(100), Asks("odd", 1, base_gib=70), *_alike(6, 10, base_gib=50)),
        looks={99: "wall", 101: "x0"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="alike by tasks",
        section="4.2.2, feature 1",
        decides="Six jobs that differ from an older one in the number of tasks are a queue, which"
        " is served first.",
        nodes=_TWO,
        jobs=(_wall(100, 2), Asks("odd", 1, gpus=2, base_gib=50), *_alike(6, 10, base_gib=50)),
        looks={99: "wall wall", 101: "x0 x1"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="alike by GPUs a task",
        section="4.2.2, feature 3",
        decides="Two GPUs as two tasks and two GPUs as one task are not alike, though their number"
        " is the same.",
        nodes=_TWO,
        jobs=(
            _wall(100, 2),
            Asks("odd", 1, gpus=2, gpus_per_pod=1, base_gib=50),
            *_alike(6, 10, gpus=2, gpus_per_pod=2, base_gib=50),
        ),
        looks={99: "wall wall", 101: "x0 x0"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="a queue that starves is served more",
        section="4.2.2 (w = max(length, median wait times length))",
        decides="Two jobs that have waited nine times as long outweigh six new ones.",
        jobs=(
            _wall(100),
            *_alike(6, 90, base_gib=50, percent=5),
            Asks("old", 1, base_gib=50, percent=95),
            Asks("old2", 2, base_gib=50, percent=95),
        ),
        looks={99: "wall", 101: "old"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="a long queue is served more",
        section="4.2.2 (w = max(length, median wait times length))",
        decides="Of two queues that have waited about as long, the longer one has both places of a"
        " round.",
        nodes=_TWO,
        jobs=(
            _wall(1000, 2),
            Asks("odd", 1, base_gib=50, percent=95),
            *_alike(6, 2, base_gib=50, percent=5),
        ),
        looks={999: "wall wall", 1001: "x0 x1"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="shares by the largest remainder",
        section="4.2.2 (w / sum of w times beta; the rounding is ours)",
        decides="Of two places, queues of weight 0.6 and 0.4 have one each.",
        nodes=_TWO,
        jobs=(
            _wall(1000, 2),
            *(Asks(f"odd{i}", 1 + i, base_gib=50, percent=95) for i in range(2)),
            *_alike(3, 3, base_gib=50, percent=5),
        ),
        looks={999: "wall wall", 1001: "odd0 x0"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="new jobs weigh by their number",
        section="4.2.2 (max)",
        decides="Where all waits are zero a queue weighs its length, so that the longest goes"
        " first.",
        nodes=_TWO,
        jobs=(
            Asks("odd", 0, base_gib=50, percent=95),
            *(Asks(f"x{i}", 0, base_gib=50, percent=5) for i in range(6)),
        ),
        looks={0.5: "x0 x1"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="features count in units of their spread",
        section="4.2.2 (L1 distance; the standardisation is ours)",
        decides="Where the memory of the others does not vary, 4 GiB more tell a job apart, though"
        " utilisations are up to 60 points apart.",
        jobs=(
            _wall(100),
            Asks("odd", 1, base_gib=54, percent=50),
            *(Asks(f"x{i}", 10 + i, base_gib=50, percent=20 + 30 * (i % 3)) for i in range(6)),
        ),
        looks={99: "wall", 101: "x0"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="three queues",
        section="4.2.2 (k = 3)",
        decides="A job between two kinds has a queue of its own, and does not come first in that of"
        " one of them.",
        jobs=(
            _wall(100),
            Asks("lone", 1, base_gib=50, percent=50),
            *(Asks(f"y{i}", 5 + i, base_gib=50, percent=95) for i in range(4)),
            *_alike(5, 5.5, base_gib=50, percent=5),
        ),
        looks={99: "wall", 101: "y0"},
        **_SHORT,
        **_FAIR,
    ),
    Scenario(
        name="no more than three queues",
        section="4.2.2 (k = 3)",
        decides="Of four kinds the two that are most alike are one queue, whose longest wait is"
        " first.",
        jobs=(
            _wall(100),
            Asks("odd", 1, base_gib=50, percent=50),
            *(Asks(f"w{i}", 2 + i, base_gib=50, percent=52) for i in range(5)),
            *_alike(3, 10, base_gib=50, percent=5),
            *(Asks(f"z{i}", 13 + i, base_gib=50, percent=95) for i in range(3)),
        ),
        looks={99: "wall", 101: "odd"},
        **_SHORT,
        **_FAIR,
    ),
    # --- the baselines ---------------------------------------------------------------------------
    Scenario(
        name="least loaded by memory",
        profile="obp",
        paper="Horus",
        section="5.2 (OBP)",
        decides="The GPU with most memory free takes the job, however busy it is.",
        nodes=_TWO,
        jobs=(
            Asks("busy", percent=95, base_gib=5),
            Asks("large", 1, percent=20, base_gib=30),
            Asks("new", 2, percent=60),
        ),
        looks={3: "busy+new large"},
    ),
    Scenario(
        name="a newcomer at half speed goes back",
        profile="pab",
        paper="Horus",
        section="5.2 (PAB)",
        decides="After a warm-up of 60 s the newcomer at less than half its speed is queued again.",
        jobs=(Asks("a", 0, 1000, kind="m"), Asks("b", 1, 1000, kind="m")),
        slowdown={("m", "m"): 1.5},
        looks={59: "a+b", 62: "a", 900: "a"},
    ),
    Scenario(
        name="a newcomer at more than half speed stays",
        profile="pab",
        paper="Horus",
        section="5.2 (PAB)",
        decides="A pair that keeps 53 % of its speed stays.",
        jobs=(Asks("a", 0, 1000, kind="m"), Asks("b", 1, 1000, kind="m")),
        slowdown={("m", "m"): 0.9},
        looks={59: "a+b", 300: "a+b"},
    ),
    Scenario(
        name="whole GPUs in the order of arrival",
        profile="fifo",
        paper="Horus",
        section="5.2 (FIFO)",
        decides="A job has an idle GPU to itself, and the first in line holds up the others.",
        nodes=_TWO,
        jobs=(Asks("a"), Asks("big", 1, 100, gpus=2), Asks("c", 2)),
        looks={3: "a -", 1001: "big big", 1101: "c -"},
    ),
)
