"""[SJF-BSBF] Luo et al., 2024: who shares with whom, in which batch, and who waits."""

from __future__ import annotations

from typing import Any

from studies.scenarios.model import Asks, Scenario, both, gpus
from tandem.policy.job import Iteration, SubBatch

_BSBF: dict[str, Any] = {"paper": "SJF-BSBF", "profile": "sjf-bsbf"}
_TWO = gpus(2)
#: 0.1 s and 0.01 s an item, 20 items; communication takes 0.3 s. Two micro-batches take 0.7 s in
#: place of 0.6 s, four 0.9 s: stretches of 1.17 and 1.5. Of 6 GiB, 4 are the batch's.
_TALKS = Iteration(
    batch=20, compute_fixed_s=0.1, compute_per_item_s=0.01, message_bytes=2e8,
    communication_fixed_s=0.1, communication_per_byte_s=1e-9, memory_fixed_gib=20.0,
    memory_per_item_gib=2.0,
)  # fmt: skip

SCENARIOS = (
    Scenario(
        name="shortest remaining time first",
        section="V-B1; Alg. 1, lines 1-2",
        decides="Of the jobs that wait, the one with the least time left is tried first, whatever"
        " came first or has fewer GPUs.",
        nodes=_TWO,
        jobs=(
            Asks("wall", 0, 100, gpus=2, kind="w"),
            Asks("one", 1, 300, kind="n"),
            Asks("two", 2, 200, gpus=2, kind="n"),
        ),
        slowdown=both(9.0, ("w", "n"), ("n", "n")),
        looks={50: "wall wall", 101: "two two", 301: "one -"},
        **_BSBF,
    ),
    Scenario(
        name="free GPUs before shared ones",
        section="Alg. 1, lines 6-7",
        decides="Where enough GPUs are free a job takes them, though sharing would cost nothing.",
        nodes=_TWO,
        jobs=(Asks("a"), Asks("b", 1)),
        looks={2: "a b"},
        **_BSBF,
    ),
    Scenario(
        name="free GPUs are taken on few nodes",
        section="V-B2",
        decides="Of the free GPUs, those that keep the job consolidated, whatever its tensors are"
        " like.",
        nodes=gpus(4, 4),
        jobs=(Asks("x"), Asks("g", 1, gpus=4, skewed=False)),
        looks={2: "x - - - g g g g"},
        **_BSBF,
    ),
    Scenario(
        name="two alike share at a ratio of 1.4",
        section="V-A, Theorem 1",
        decides="10 s and 10 s of work, both stretched by 1.4: 14 s overlapped, 15 s in turn.",
        jobs=(Asks("a", 0, 1000, kind="m"), Asks("b", 0.1, 1000, kind="m")),
        slowdown={("m", "m"): 0.4},
        looks={1: "a+b"},
        **_BSBF,
    ),
    Scenario(
        name="two alike wait at a ratio of 1.6",
        section="V-A, Theorem 1",
        decides="10 s and 10 s of work, both stretched by 1.6: 16 s overlapped, 15 s in turn.",
        jobs=(Asks("a", 0, 1000, kind="m"), Asks("b", 0.1, 1000, kind="m")),
        slowdown={("m", "m"): 0.6},
        looks={1: "a", 1001: "b"},
        **_BSBF,
    ),
    Scenario(
        name="a short job shares where a long one waits",
        section="V-A, Theorem 1",
        decides="Both stretched by 2: 4 s next to 10 s share (11 s against 12), 10 s next to 4 s do"
        " not (11 s against 9).",
        nodes=_TWO,
        jobs=(
            Asks("long", 0, 1000, kind="m"),
            Asks("brief", 0.1, 400, kind="n"),
            Asks("short", 1, 400, kind="o"),
            Asks("tall", 2, 1000, kind="p"),
        ),
        slowdown=both(1.0, ("m", "o"), ("n", "p")) | both(9.0, ("n", "o"), ("m", "p"), ("o", "p")),
        looks={3: "long+short brief", 401: "long+short tall"},
        **_BSBF,
    ),
    Scenario(
        name="which of the two is slowed down matters",
        section="V-A, Eq. 16-21",
        decides="Next to 600 s of work that it stretches by 2.5, a job of 400 s that is stretched"
        " by 1.5 shares; where it is the one that is stretched by 2.5 it does not.",
        nodes=_TWO,
        jobs=(
            Asks("firm", 0, 600, kind="f"),
            Asks("hurt", 0.1, 600, kind="h"),
            Asks("new", 1, 400, kind="n"),
        ),
        slowdown={("h", "n"): 1.5, ("n", "h"): 0.5, ("f", "n"): 0.5, ("n", "f"): 1.5},
        looks={2: "firm hurt+new"},
        **_BSBF,
    ),
    Scenario(
        name="what is left decides and not what there was",
        section="V-A, Theorem 1; Alg. 1, line 1",
        decides="Next to a job that has 100 s of 1,000 left, one of 1,000 s that both stretch by 2"
        " waits; next to one with 990 s left it would share.",
        jobs=(Asks("a", 0, 1000, kind="m"), Asks("b", 900, 450, kind="n")),
        slowdown=both(1.0, ("m", "n")),
        looks={901: "a", 1001: "b"},
        **_BSBF,
    ),
    Scenario(
        name="the partner with the least mean completion time",
        section="Alg. 1, lines 14-16",
        decides="Of two jobs that both gain by sharing, the pair with the least mean completion"
        " time, not the first.",
        nodes=_TWO,
        jobs=(
            Asks("a", 0, 1000, kind="m"),
            Asks("b", 0.1, 1000, kind="n"),
            Asks("new", 1, 300, kind="o"),
        ),
        slowdown=both(0.4, ("m", "o")) | both(0.1, ("n", "o")),
        looks={2: "a b+new"},
        **_BSBF,
    ),
    Scenario(
        name="the pair's time and not the gain",
        section="Alg. 1, lines 14-16; Alg. 2",
        decides="The partner that ends sooner makes the pair's mean least, though the other one"
        " gains more by not waiting.",
        nodes=_TWO,
        jobs=(
            Asks("long", 0, 3000, kind="m"),
            Asks("short", 0.1, 600, kind="n"),
            Asks("new", 1, 300, kind="o"),
        ),
        slowdown=both(0.2, ("m", "o"), ("n", "o")),
        looks={2: "long new+short"},
        **_BSBF,
    ),
    Scenario(
        name="memory of both within the GPU",
        section="IV, constraint of memory; Alg. 2",
        decides="Two jobs whose memory does not fit together do not share, though it would pay.",
        jobs=(Asks("a", 0, 1000, base_gib=45), Asks("b", 1, 1000, base_gib=45)),
        looks={2: "a", 1001: "b"},
        **_BSBF,
    ),
    Scenario(
        name="peaks count as memory",
        section="Alg. 2 (peak memory of the partner)",
        decides="Two jobs whose peaks do not fit together do not share.",
        jobs=(
            Asks("a", 0, 1000, base_gib=30, extra_gib=20),
            Asks("b", 1, 1000, base_gib=30, extra_gib=20),
        ),
        looks={2: "a", 1001: "b"},
        **_BSBF,
    ),
    Scenario(
        name="a smaller batch fits next to the partner",
        section="V-B3, Alg. 2",
        decides="The batch is halved until its memory fits, and the job shares in micro-batches"
        " where that beats waiting.",
        jobs=(
            Asks("a", 0, 1000, base_gib=35, kind="m"),
            Asks("b", 1, 300, base_gib=60, kind="n", iteration=_TALKS),
        ),
        slowdown=both(0.05, ("m", "n")),
        looks={2: "a+b"},
        steps={"b": 2},
        **_BSBF,
    ),
    Scenario(
        name="of the batches that fit the best",
        section="V-B3, Alg. 2, lines 7-12",
        decides="Where the whole batch disturbs much and half of it little, half of it is run; a"
        " quarter, whose iterations take longest, is not.",
        jobs=(
            Asks("a", 0, 1000, base_gib=20, kind="m"),
            Asks(
                "b",
                1,
                300,
                base_gib=50,
                kind="n",
                halves=(SubBatch(2, 30.0, 0.0, 1.1), SubBatch(4, 20.0, 0.0, 3.0)),
            ),
        ),
        slowdown=both(0.2, ("m", "n")),
        looks={2: "a+b"},
        steps={"b": 1},
        **_BSBF,
    ),
    Scenario(
        name="a batch that is stretched too far is not worth it",
        section="Theorem 1, Eq. 7",
        decides="The quarter that fits would stretch the job by three: it waits.",
        jobs=(
            Asks("a", 0, 1000, base_gib=58, kind="m"),
            Asks(
                "b",
                1,
                1000,
                base_gib=50,
                kind="n",
                halves=(SubBatch(2, 30.0, 0.0, 1.1), SubBatch(4, 20.0, 0.0, 3.0)),
            ),
        ),
        slowdown=both(0.2, ("m", "n")),
        looks={2: "a", 1001: "b"},
        steps={"b": 1},
        **_BSBF,
    ),
    Scenario(
        name="communication makes accumulation pay",
        section="IV-A, Eq. 4, 7",
        decides="An iteration of which half is communication is stretched little by micro-batches,"
        " so that it shares in four of them.",
        jobs=(
            Asks("a", 0, 1000, base_gib=50, kind="m"),
            Asks("b", 1, 1000, base_gib=60, kind="n", iteration=_TALKS),
        ),
        slowdown=both(0.2, ("m", "n")),
        looks={2: "a+b"},
        steps={"b": 4},
        **_BSBF,
    ),
    Scenario(
        name="a gang tops up shared GPUs with free ones",
        section="Alg. 1, lines 9-17",
        decides="With one GPU free and one held by one job, a gang of two takes both.",
        nodes=_TWO,
        jobs=(Asks("a", 0, 1000), Asks("g", 1, 300, gpus=2)),
        looks={2: "a+g g"},
        **_BSBF,
    ),
    Scenario(
        name="at most two jobs on a GPU",
        section="V-B2",
        decides="A GPU with two jobs takes no third, though it would disturb neither.",
        jobs=(Asks("a"), Asks("b", 1), Asks("c", 2)),
        looks={3: "a+b"},
        **_BSBF,
    ),
    Scenario(
        name="a job that waits blocks no other",
        section="Alg. 1, lines 2-3",
        decides="A short job that would be hurt waits, and a longer one that gains shares.",
        jobs=(
            Asks("a", 0, 1000, kind="m"),
            Asks("hurt", 1, 400, kind="n"),
            Asks("mild", 1, 900, kind="o"),
        ),
        slowdown=both(9.0, ("m", "n")) | both(0.1, ("m", "o")),
        looks={2: "a+mild"},
        **_BSBF,
    ),
    Scenario(
        name="running jobs are not preempted",
        section="V-B1",
        decides="A shorter job does not take the GPU of one that runs.",
        jobs=(Asks("a", 0, 1000, kind="m"), Asks("b", 1, 300, kind="n")),
        slowdown=both(9.0, ("m", "n")),
        looks={2: "a", 1001: "b"},
        **_BSBF,
    ),
    Scenario(
        name="first fit shares with the first",
        profile="sjf-ffs",
        paper="SJF-BSBF",
        section="VI-A (baseline SJF-FFS)",
        decides="Without the benefit rule a job shares with the first that it fits with, whatever"
        " it slows down.",
        nodes=_TWO,
        jobs=(
            Asks("a", 0, 1000, kind="m"),
            Asks("b", 0.1, 1000, kind="n"),
            Asks("new", 1, 300, kind="o"),
        ),
        slowdown=both(9.0, ("m", "o")) | both(0.1, ("n", "o")),
        looks={2: "a+new b"},
    ),
    Scenario(
        name="shortest job first alone",
        profile="sjf",
        paper="SJF-BSBF",
        section="VI-A (baseline SJF)",
        decides="The shortest of the jobs that wait has the next whole GPU.",
        jobs=(Asks("a", 0, 100), Asks("b", 1, 300), Asks("c", 2, 200)),
        looks={50: "a", 101: "c", 301: "b"},
    ),
)
