"""What agents measure corrects what was predicted, on a real control plane.

TANDEM_LEARNING_EVERY_S is the time between two looks of the adjuster: 1 s here, 10 s by default.
The times that it took are printed; nothing is asserted about them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import DEVICES, TandemCluster, job
from e2e_physics import Physics

from controlplane import ControlPlane, Node, wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("learning")]

EVERY_S = float(os.environ.get("TANDEM_LEARNING_EVERY_S", "1"))
WORDS = 3  # that a namespace's jobs have on pairs
SETTINGS = {
    "learning": {"every_s": EVERY_S, "settle_s": 4.0, "pairs_per_namespace": WORDS},
    "profile": "tandem",
}
SAVES = {"tandem.gpu/checkpoint": "true"}
ALEXNET = SAVES | {"tandem.gpu/model": "alexnet", "tandem.gpu/batch-size": "32"}
INCEPTION = SAVES | {"tandem.gpu/model": "inception-v1", "tandem.gpu/batch-size": "16"}
WHOLE = {"tandem.gpu/exclusive": "true"}
LONG_S = 240.0


@pytest.fixture(scope="module")
def physics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TandemCluster, Physics]]:
    """Two nodes of one GPU each; `alexnet` and `inception` slow each other down by 60 %.

    A third one, of four GPUs, is for those who tolerate it.
    """
    need_control_plane()
    folder: Path = tmp_path_factory.mktemp("learning")
    nodes = [Node("n0"), Node("n1"), Node("apart", taints=("apart=yes:NoSchedule",))]
    with ControlPlane.start(nodes=nodes) as plane:
        cluster = TandemCluster(plane, folder)
        cluster.installation.install(SETTINGS)
        bad = {("alexnet", "inception"): 0.6, ("inception", "alexnet"): 0.6}
        with Physics(cluster, folder, {"n0": 1, "n1": 1, "apart": 4}, bad) as physics:
            yield cluster, physics


@pytest.fixture
def tenants(physics: tuple[TandemCluster, Physics]) -> Iterator[tuple[str, str]]:
    """Two namespaces, whose jobs are gone before the next test."""
    cluster, _ = physics
    both = cluster.namespace(), cluster.namespace()
    yield both
    for namespace in both:
        cluster.remove(namespace)


def gpu_of(cluster: TandemCluster, namespace: str, name: str) -> str:
    """Return the GPU of a job's pod, '' while it has none or is on its way out."""
    pod = cluster.pod_of(namespace, name)
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return ""
    return (pod["metadata"].get("annotations") or {}).get(DEVICES, "")


def started(cluster: TandemCluster, namespace: str, name: str, annotations: dict) -> str:
    cluster.apply_job(namespace, job(name, annotations=annotations))
    return cluster.running(namespace, name, timeout_s=90)["metadata"]["uid"]


def uid_of(cluster: TandemCluster, namespace: str, name: str) -> str:
    pod = cluster.pod_of(namespace, name)
    return pod["metadata"]["uid"] if pod else ""


def test_bad_neighbours_are_parted_and_their_models_never_put_together_again(
    physics: tuple[TandemCluster, Physics], tenants: tuple[str, str]
) -> None:
    """The pair and each model with itself are predicted to keep 80 % of their speed or more.

    A newcomer that is predicted to be slower waits once its neighbour has run for some minutes
    (`shares_well`), so the scenario would depend on the time that it takes.
    """
    cluster, gpus = physics
    mine, other = tenants
    for namespace in (mine, other):
        cluster.push(namespace, "alexnet", "inception-v1")
    # One GPU is taken, so that the two that are thought to get along share the other.
    started(cluster, mine, "whole", WHOLE)
    started(cluster, mine, "alexnet-1", ALEXNET)
    gpus.is_known_alone(mine, "alexnet-1")
    started(cluster, mine, "inception-1", INCEPTION)
    began = time.monotonic()
    assert gpu_of(cluster, mine, "alexnet-1") == gpu_of(cluster, mine, "inception-1")
    cluster.let_end(mine, "whole")

    def moves() -> list[str]:
        said = gpus.decisions(mine, "alexnet-1") + gpus.decisions(mine, "inception-1")
        return [line for line in said if "Moved" in line]

    wait_until(
        lambda: gpus.slowdown_of(mine, "alexnet-1") > 0.35 or moves(),
        "it is noticed",
        timeout_s=LONG_S,
    )
    noticed = time.monotonic() - began

    def parted() -> bool:
        places = [gpu_of(cluster, mine, name) for name in ("alexnet-1", "inception-1")]
        return all(places) and len(set(places)) == 2

    wait_until(parted, "the two are parted", timeout_s=LONG_S)
    moved = time.monotonic() - began
    assert any("too slow next to" in line for line in moves())
    for name in ("alexnet-1", "inception-1"):
        wait_until(
            lambda name=name: (
                gpus.slowdown_of(mine, name) == 0.0
                and gpus.gpujob(mine, name)["phase"] == "Running"
            ),
            f"{name} runs as if alone",
            timeout_s=LONG_S,
        )
    restored = time.monotonic() - began
    print(f"noticed after {noticed:.0f} s, moved after {moved:.0f} s, restored {restored:.0f} s")

    # Others profit, by what the agents have measured: no pod has reported anything of itself.
    for name, asks, neighbour in (
        ("inception-2", INCEPTION, "inception-1"),
        ("alexnet-2", ALEXNET, "alexnet-1"),
    ):
        started(cluster, other, name, asks)
        assert gpu_of(cluster, other, name) == gpu_of(cluster, mine, neighbour)


def test_who_forges_its_progress_moves_no_other_job(
    physics: tuple[TandemCluster, Physics], tenants: tuple[str, str]
) -> None:
    cluster, gpus = physics
    theirs, mine = tenants
    declared = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "45"}
    started(cluster, theirs, "whole", WHOLE)
    started(cluster, mine, "forger", declared)
    forger = Teller(cluster, mine, "forger")
    forger.tell(100.0)
    gpus.is_known_alone(mine, "forger")
    before = started(cluster, theirs, "honest", declared | SAVES)
    assert gpu_of(cluster, mine, "forger") == gpu_of(cluster, theirs, "honest")
    cluster.let_end(theirs, "whole")  # there would be a place to move to

    def said() -> bool:
        forger.tell(1.0)
        return any("which moves no other job" in line for line in gpus.decisions(mine, "forger"))

    wait_until(
        said,
        "the forger's status says that its report moves no other job",
        timeout_s=LONG_S,
        poll_s=0.5,
    )
    assert uid_of(cluster, theirs, "honest") == before
    assert not any("Moved" in line for line in gpus.decisions(theirs, "honest"))


def test_who_declared_far_too_little_is_the_one_who_leaves(
    physics: tuple[TandemCluster, Physics], tenants: tuple[str, str]
) -> None:
    cluster, gpus = physics
    theirs, mine = tenants
    gpus.gib["liar"] = 12
    gpus.percent["honest"] = 45
    gpus.slowdown["honest", "liar"] = 0.8
    honest = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "45"} | SAVES
    lie = {"tandem.gpu/memory": "4Gi", "tandem.gpu/utilization": "10"} | SAVES
    started(cluster, theirs, "whole", WHOLE)
    before = started(cluster, theirs, "honest", honest)
    gpus.is_known_alone(theirs, "honest")
    liar = started(cluster, mine, "liar", lie)
    place = gpu_of(cluster, theirs, "honest")
    assert gpu_of(cluster, mine, "liar") == place
    cluster.let_end(theirs, "whole")
    wait_until(
        lambda: (
            uid_of(cluster, mine, "liar") not in ("", liar)
            and gpu_of(cluster, mine, "liar") not in ("", place)
        ),
        "the liar goes on elsewhere",
        timeout_s=LONG_S,
    )
    assert (uid_of(cluster, theirs, "honest"), gpu_of(cluster, theirs, "honest")) == (before, place)
    said = gpus.decisions(mine, "liar")
    assert any("Moved" in line and "too slow next to" in line for line in said), said


def test_who_floods_the_history_moves_no_jobs_of_others(
    physics: tuple[TandemCluster, Physics], tenants: tuple[str, str]
) -> None:
    """By their pods' word models are said to be bad neighbours, those of others among them."""
    cluster, gpus = physics
    theirs, mine = tenants
    declared = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "45"}
    there = {
        "nodeSelector": {"kubernetes.io/hostname": "apart"},
        "tolerations": [{"key": "apart", "operator": "Exists"}],
    }

    def of_image(image: str, name: str, **pod: object) -> dict:
        made = job(name, annotations=declared | (SAVES if not pod else {}))
        made["spec"]["template"]["spec"] |= pod
        made["spec"]["template"]["spec"]["containers"][0]["image"] = image
        return made

    started(cluster, theirs, "whole", WHOLE)
    cluster.apply_job(theirs, of_image("calm:1", "calm"))
    before = [cluster.running(theirs, "calm")["metadata"]["uid"]]
    cluster.apply_job(theirs, of_image("even:1", "even"))
    before.append(cluster.running(theirs, "even")["metadata"]["uid"])
    assert gpu_of(cluster, theirs, "calm") == gpu_of(cluster, theirs, "even")
    cluster.let_end(theirs, "whole")  # there would be a place to move to

    # More pairs than one namespace is remembered by; that of the two above ends last.
    for number in range(4):
        cluster.apply_job(mine, of_image("calm:1", f"first-{number}", **there))
    tellers = []
    for number in range(4):
        cluster.running(mine, f"first-{number}")
        tellers.append(Teller(cluster, mine, f"first-{number}"))
        tellers[-1].tell(100.0)
    seconds = {"even:1": "second-0", "b:1": "second-1", "c:1": "second-2", "d:1": "second-3"}
    for number in range(4):
        gpus.is_known_alone(mine, f"first-{number}")
    for image, name in seconds.items():
        cluster.apply_job(mine, of_image(image, name, **there))
    for name in seconds.values():
        cluster.running(mine, name)

    def all_known() -> bool:
        for teller in tellers:
            teller.tell(1.0)
        return all(gpus.slowdown_of(mine, teller.job) > 1 for teller in tellers)

    wait_until(all_known, "what they tell is known", timeout_s=LONG_S, poll_s=0.5)
    neighbour = gpu_of(cluster, mine, "second-0")
    tellers.sort(key=lambda each: gpu_of(cluster, mine, each.job) == neighbour)
    *others, last = tellers
    for teller in others:
        cluster.let_end(mine, teller.job)
    for teller in others:
        wait_until(
            lambda job=teller.job: gpus.observed(mine, job).get("remembered"),
            f"the end of {teller.job} is remembered",
            timeout_s=LONG_S,
        )
    last.tell(1.0)  # the agent believes a report for a minute
    cluster.let_end(mine, last.job)
    poison = [gpus.observed(theirs, name)["kind"] for name in ("calm", "even")]

    def words() -> list[list]:
        kept = cluster.read("/api/v1/namespaces/tandem-system/configmaps/tandem-history")["data"]
        return [row for row in json.loads(kept["pairs"]) if row[2] == mine]

    wait_until(lambda: poison in [row[:2] for row in words()], "it is remembered", timeout_s=LONG_S)
    assert len(words()) <= WORDS
    assert [uid_of(cluster, theirs, name) for name in ("calm", "even")] == before
    for name in ("calm", "even"):
        assert not any("Moved" in line for line in gpus.decisions(theirs, name))

    # The next run of the one is placed next to the other as before.
    started(cluster, theirs, "whole-again", WHOLE)
    cluster.let_end(theirs, "even")
    cluster.apply_job(theirs, of_image("even:1", "even-again"))
    cluster.running(theirs, "even-again")
    assert gpu_of(cluster, theirs, "even-again") == gpu_of(cluster, theirs, "calm")


class Teller:
    """A job's pod that tells its agent how fast it is, with its own token."""

    def __init__(self, cluster: TandemCluster, namespace: str, job: str) -> None:
        self.job = job
        pod = cluster.pod_of(namespace, job)
        assert pod is not None
        meta = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": ["tandem-agent"], "boundObjectRef": bound},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
        answer = cluster.plane.http.post(path, json=review).raise_for_status().json()
        self._token = answer["status"]["token"]
        self._url = f"{cluster.installation.agent_url(pod['spec']['nodeName'])}/v1/progress"

    def tell(self, rate: float) -> None:
        """Tell so many iterations per second, and see to it that it is taken."""

        def taken() -> bool:
            return httpx.post(
                self._url,
                json={"iterations": rate, "seconds": 1.0},
                headers={"Authorization": f"Bearer {self._token}"},
                trust_env=False,
                timeout=10.0,
            ).is_success

        wait_until(taken, f"what {self.job} tells is taken")
