"""[SJF-BSBF] Theorem 1 on a control plane: each of 200 pairs shares, or waits, as is best for it.

Each pair has a node of one GPU to itself: the first job runs, the second comes, and Tandem decides.
The predictor says what is true. A replay with the true times tries both choices.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job
from e2e_papers import QUEUE, SaidPredictor
from e2e_physics import Physics
from theorem_pairs import Pair, drawn, replayed_mean_s

from controlplane import ControlPlane, Node, wait_until
from tandem.contracts.prediction import InterferenceAnswer, PairSlowdown, Prediction
from tandem.contracts.resources import Load, Source

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.papers,
    pytest.mark.slow,
    pytest.mark.xdist_group("papers"),
    pytest.mark.timeout(1800),  # 200 pairs, 25 rounds of them
]

GIB = 1 << 30
PAIRS, AT_ONCE = 200, 8
NODES = [f"t{index}" for index in range(AT_ONCE)]
ALONE_S = 3.0  # for which the first job has run, at least, when the second comes
SEEN_S = 2.0  # for which a decision stays before it counts


class Said:
    """What a predictor says that knows the truth; a model's name is PAIR-JOB."""

    def __init__(self, pairs: dict[str, Pair]) -> None:
        self.pairs = pairs

    def load(self, model: str, steps: int = 1) -> Prediction:
        said = Load(
            utilisation_percent=60, utilisation_p95_percent=60, memory_base_bytes=4 * GIB,
            memory_peak_extra_bytes=0, peak_probability=0, memory_p95_bytes=4 * GIB,
            utilisation_source=Source.FORMULA, memory_source=Source.FORMULA,
            feature_hash=model, iteration_s=1.0, compute_share=0.5, bandwidth_share=0.5,
        )  # fmt: skip
        return Prediction(load=said, explanation="what is true")

    def price(self, job: Load, candidates: list[Load]) -> InterferenceAnswer:
        pairs = []
        for other in candidates:
            (number, one), (_, two) = (each.feature_hash.split("-") for each in (job, other))
            own, caused = (self.pairs[number].said_ratio[int(which)] - 1 for which in (one, two))
            pairs.append(PairSlowdown(job_slowdown=own, partner_slowdown=caused))
        return InterferenceAnswer(pairs=pairs, source=Source.MODEL)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TandemCluster, Said]]:
    """Nodes of one GPU each, with agents, under the profile of the paper."""
    need_control_plane()
    folder = tmp_path_factory.mktemp("theorem")
    with (
        ControlPlane.start(nodes=[Node(name, cpu=32) for name in NODES]) as plane,
        SaidPredictor() as predictor,
    ):
        cluster, said = TandemCluster(plane, folder), Said({})
        predictor.scenario = said  # type: ignore[assignment] # it says loads and prices, too
        cluster.installation.apply_manifests()
        cluster.installation.start_scheduler()
        with Physics(cluster, folder, dict.fromkeys(NODES, 1), {}):
            settings = {"profile": "sjf-bsbf", "predictor_url": predictor.url, "queue": QUEUE}
            cluster.installation.start_extender(settings)
            yield cluster, said


def submit(cluster: TandemCluster, space: str, index: int, which: int, iterations: int) -> None:
    asks = {
        "tandem.gpu/model": f"{index}-{which}", "tandem.gpu/batch-size": "32",
        "tandem.gpu/iterations": str(iterations),
    }  # fmt: skip
    made = job(f"j{which}-{index}", annotations=asks)
    node = {"kubernetes.io/hostname": NODES[index % AT_ONCE]}
    made["spec"]["template"]["spec"]["nodeSelector"] = node
    path = f"/apis/batch/v1/namespaces/{space}/jobs"
    cluster.plane.http.post(path, json=made).raise_for_status()


def phases(cluster: TandemCluster, space: str) -> dict[str, str]:
    """Return by job whether it runs, or the reason why it waits."""
    found = {}
    for each in cluster.gpujobs(space):
        status = each.get("status") or {}
        phase = status.get("phase", "")
        if phase == "Queued":
            phase = status.get("reason", "")
        found[each["metadata"]["name"].removeprefix("job-")] = phase
    return found


def decided(cluster: TandemCluster, pairs: dict[int, Pair]) -> dict[int, tuple[bool, bool]]:
    """Return for each pair whether its second job joined the first, and whether that is best."""
    space = cluster.namespace()
    started, best = {}, {}
    for index, pair in pairs.items():
        submit(cluster, space, index, 0, round(pair.left_s[0]))
    for index in pairs:
        cluster.running(space, f"j0-{index}")
        started[index] = time.monotonic()
    time.sleep(ALONE_S)
    for index, pair in pairs.items():
        left = (pair.left_s[0] - (time.monotonic() - started[index]), pair.left_s[1])
        true = Pair(left, pair.ratio, pair.said_ratio, pair.said_iteration_s)
        best[index] = replayed_mean_s(true, shares=True) < replayed_mean_s(true, shares=False)
        submit(cluster, space, index, 1, round(pair.left_s[1]))
    since: float | None = None
    seen: dict[str, str] = {}

    def settled() -> bool:
        nonlocal since, seen
        now = phases(cluster, space)
        seconds = [now.get(f"j1-{index}") for index in pairs]
        if now != seen or not all(each in ("Running", "Waiting") for each in seconds):
            seen, since = now, None
            return False
        since = since or time.monotonic()
        return time.monotonic() - since > SEEN_S

    wait_until(settled, "every second job runs or waits", timeout_s=60, poll_s=0.3)
    assert all(seen[f"j0-{index}"] == "Running" for index in pairs)
    cluster.remove(space)
    return {index: (seen[f"j1-{index}"] == "Running", best[index]) for index in pairs}


def test_pairs_share_or_wait_as_a_replay_with_the_true_times_finds_best(
    plane: tuple[TandemCluster, Said], seed: int
) -> None:
    cluster, said = plane
    rng = np.random.default_rng(seed)
    pairs = {index: drawn(rng, 0.0) for index in range(PAIRS)}
    said.pairs = {str(index): pair for index, pair in pairs.items()}
    found: dict[int, tuple[bool, bool]] = {}
    for first in range(0, PAIRS, AT_ONCE):
        some = range(first, min(first + AT_ONCE, PAIRS))
        found |= decided(cluster, {index: pairs[index] for index in some})
    right = sum(joined == best for joined, best in found.values())
    shared = sum(joined for joined, _ in found.values())
    print(f"{right} of {PAIRS} decisions as the replay; {shared} shared")
    assert 0.2 * PAIRS < shared < 0.8 * PAIRS
    assert right >= 0.95 * PAIRS
