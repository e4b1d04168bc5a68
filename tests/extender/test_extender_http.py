"""The service as kube-scheduler, Prometheus and users meet it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from extender_builders import NOW, gpu_node, node, pod

from controlplane import binaries
from scheduler_extender.config import REMOVED, ConfigError, ExtenderConfig, read_config
from scheduler_extender.serving.app import public_app, verbs_app
from scheduler_extender.serving.routes import MAX_BODY_BYTES
from scheduler_extender.serving.service import Service, running
from scheduler_extender.serving.traffic import Traffic
from tandem.contracts import names
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_NODES, NODES, PODS


@asynccontextmanager
async def extender() -> AsyncIterator[tuple[Service, MemoryCluster, httpx.AsyncClient]]:
    """The whole service on an API server in memory; the queue controller stays passive."""
    config = ExtenderConfig.model_validate({"api": "memory"})
    cluster = MemoryCluster()
    async with running(config, cluster, clock=lambda: NOW) as service:
        service.binder._may_bind = lambda: True  # there is no Lease that could name a leader
        service.binder._refusal = service.verbs._refusal = lambda _: ""  # and no leader that plans
        apps = {"verbs": verbs_app(service), "public": public_app(service)}
        mounts = {f"http://{name}": httpx.ASGITransport(app) for name, app in apps.items()}
        async with httpx.AsyncClient(mounts=mounts) as client:
            yield service, cluster, client


def story(test):
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    run.__name__ = test.__name__
    return run


@story
async def test_the_page_lets_filter_and_prioritize_go_first_but_no_bind() -> None:
    """A bind waits for the API server, and needs no event loop meanwhile."""
    async with extender() as (service, cluster, _):
        await service.feed.wait_ready()
        created = cluster.create(PODS, pod("p"), "ml")
        counted: list[str] = []
        asked = ""

        class Counted(Traffic):
            def verb(self) -> AbstractContextManager[None]:
                counted.append(asked)
                return super().verb()

        service.traffic = Counted()
        transport = httpx.ASGITransport(verbs_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://verbs") as verbs:
            for asked in ("filter", "prioritize", "bind"):
                await verbs.post(f"/{asked}", json={"Pod": created, "NodeNames": ["n0"]})
        assert counted == ["filter", "prioritize"]


@story
async def test_from_filter_to_bind_over_http() -> None:
    async with extender() as (service, cluster, client):
        await service.feed.wait_ready()
        cluster.create(NODES, node("n0"))
        cluster.create(GPU_NODES, gpu_node("n0", "GPU-a"))
        created = cluster.create(PODS, pod("p"), "ml")
        await asyncio.sleep(0.02)
        args = {"Pod": created, "NodeNames": ["n0", "n1"]}
        filtered = (await client.post("http://verbs/filter", json=args)).json()
        assert filtered["NodeNames"] == ["n0"]
        assert (await client.post("http://verbs/prioritize", json=args)).json() == [
            {"Host": "n0", "Score": 8},
            {"Host": "n1", "Score": 0},
        ]
        binding = {
            "PodName": "p",
            "PodNamespace": "ml",
            "PodUID": created["metadata"]["uid"],
            "Node": "n0",
        }
        for _ in range(2):
            answer = await client.post("http://verbs/bind", json=binding)
            assert (answer.status_code, answer.json()) == (200, {"Error": ""})
        bound = cluster.get(PODS, "p", "ml")
        assert bound["spec"]["nodeName"] == "n0"
        assert bound["metadata"]["annotations"][names.VISIBLE_DEVICES] == "GPU-a"
        preempt = {"Pod": created, "NodeNameToMetaVictims": {"n0": {"Pods": [{"UID": "x"}]}}}
        kept = (await client.post("http://verbs/preempt", json=preempt)).json()
        assert list(kept["NodeNameToMetaVictims"]) == ["n0"]


@story
async def test_before_the_cluster_has_been_read_the_verbs_answer_503() -> None:
    async with extender() as (service, _, client):
        service.feed._ready.clear()
        answer = await client.post("http://verbs/filter", json={})
        assert answer.status_code == 503
        assert answer.json()["error"] == "the cluster has not been read yet"
        assert (await client.get("http://public/readyz")).status_code == 503
        assert (await client.get("http://public/healthz")).status_code == 200


@story
async def test_bad_input_is_named_by_its_path_and_never_a_traceback() -> None:
    async with extender() as (service, _, client):
        await service.feed.wait_ready()
        for verb, body, status, said in (
            ("filter", b"{", 400, "body: Invalid JSON"),
            ("filter", b'{"Pod":{"metadata":{"uid":7}}}', 400, "Pod.metadata.uid"),
            ("prioritize", b'{"NodeNames":["a"]}', 400, "Pod.metadata.uid: missing"),
            ("bind", b'{"PodName":"p"}', 400, "PodNamespace: Field required"),
            ("preempt", b"[]", 400, "body: "),
            ("filter", b" " * (MAX_BODY_BYTES + 1), 413, "the body is over 4194304 bytes"),
        ):
            answer = await client.post(f"http://verbs/{verb}", content=body)
            assert answer.status_code == status, answer.text
            assert said in answer.json()["error"]


@story
async def test_a_bug_is_counted_and_answers_500() -> None:
    async with extender() as (service, _, client):
        await service.feed.wait_ready()
        service.verbs._state = None  # whatever goes wrong inside
        args = {"Pod": pod("p"), "NodeNames": ["n0"]}
        answer = await client.post("http://verbs/filter", json=args)
        assert answer.status_code == 500
        assert answer.json() == {"error": "filter failed; see the log", "hint": ""}
        metrics = (await client.get("http://verbs/metrics")).text
        assert 'verb_duration_seconds_count{status="500",verb="filter"} 1.0' in metrics


@story
async def test_people_see_gpus_jobs_and_why_a_pod_waits() -> None:
    async with extender() as (service, cluster, client):
        await service.feed.wait_ready()
        cluster.create(NODES, node("n0"))
        for name in ("n0", "n1"):
            cluster.create(GPU_NODES, gpu_node(name, f"GPU-{name}"))
        cluster.create(PODS, pod("old", node_name="n0", devices="GPU-n0", exclusive=True), "ml")
        cluster.create(PODS, pod("new"), "ml")
        await asyncio.sleep(0.02)
        gpus = (await client.get("http://public/v1/gpus")).json()["gpus"]
        assert [(g["gpu"], g["held"], g["jobs"]) for g in gpus] == [
            ("GPU-n0", 1, ["ml/pod-old"]),
            ("GPU-n1", 0, []),
        ]
        assert [(g["nvlinkDomain"], g["numaNode"]) for g in gpus] == [(None, None)] * 2
        linked = gpu_node("n1", "GPU-n1")
        linked["status"]["gpus"][0] |= {"nvlinkDomain": 0, "numaNode": 1}
        cluster.patch(GPU_NODES, "n1", {"status": linked["status"]})
        await asyncio.sleep(0.02)
        gpus = (await client.get("http://public/v1/gpus")).json()["gpus"]
        assert [(g["nvlinkDomain"], g["numaNode"]) for g in gpus] == [(None, None), (0, 1)]
        only = (await client.get("http://public/v1/gpus", params={"node": "n1"})).json()
        assert [g["node"] for g in only["gpus"]] == ["n1"]
        assert (await client.get("http://public/v1/jobs")).json() == {"jobs": []}
        why = (await client.get("http://public/v1/explain/ml/new")).json()
        assert [(n["node"], n["fits"], n["reason"]) for n in why["nodes"]] == [
            ("n0", False, "n0/0: a job runs that does not share its GPU"),
            ("n1", False, "its pods cannot run because of labels, taints or a cordon"),
        ]
        assert [n["models"] for n in why["nodes"]] == [["NVIDIA A100-SXM4-80GB"]] * 2
        old = (await client.get("http://public/v1/explain/ml/old")).json()
        assert (old["node"], old["gpus"], old["held"]["why"]) == ("n0", ["GPU-n0"], "bound")
        missing = await client.get("http://public/v1/explain/ml/absent")
        assert missing.status_code == 404
        assert "no pod ml/absent" in missing.json()["error"]


@pytest.mark.skipif(
    binaries.find("promtool") is None, reason="no promtool: `tandem controlplane build` gets it"
)
def test_promtool_finds_no_fault_with_the_metrics() -> None:
    async def text() -> str:
        async with extender() as (service, cluster, client):
            await service.feed.wait_ready()
            cluster.create(GPU_NODES, gpu_node("n0", "GPU-a"))
            await client.post("http://verbs/filter", json={"Pod": pod("p"), "NodeNames": []})
            await client.post("http://verbs/bind", content=b"{}")
            return (await client.get("http://public/metrics")).text

    exposition = asyncio.run(text())
    assert "tandem_extender_gpus" in exposition
    checked = subprocess.run(
        [binaries.find("promtool"), "check", "metrics"],
        input=exposition,
        capture_output=True,
        text=True,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@story
async def test_openapi_names_every_route_once() -> None:
    async with extender() as (service, _, _client):
        for app, paths in (
            (verbs_app(service), {"/filter", "/prioritize", "/bind", "/preempt", "/metrics"}),
            (public_app(service), {"/v1/gpus", "/v1/jobs", "/v1/explain/{namespace}/{pod}"}),
        ):
            assert paths <= set(app.openapi()["paths"])
            json.dumps(app.openapi())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_job_per_gpu: 2", "max_job_per_gpu: there is no such key; nearest: max_jobs_per_gpu"),
        ("verbs: {prt: 1}", "verbs.prt: there is no such key; nearest: port"),
        ("profile: tandme", "profile: no profile 'tandme'; nearest: tandem"),
        ("profile: {name: x}", "profile.constraints: Field required"),
        ("stale_after_s: -1", "stale_after_s: Input should be greater than 0, not -1"),
        (
            "{profile: ojpp, max_jobs_per_gpu: 2}",
            "max_jobs_per_gpu: profile ojpp puts up to 16 jobs on a GPU, not 2",
        ),
        (
            "{profile: ojpap, learning: {mode: report}}",
            "learning.mode: profile ojpap adjusts by what is measured (migrate), which needs act",
        ),
        ("profile: gandiva", "queue.min_run_s: profile gandiva looks again every 60 s"),
        (
            "{profile: gandiva, queue: {min_run_s: 0}}",
            "queue.max_preemptions_per_hour: slices of 60 s need 60, not 4",
        ),
        (
            "certificate: {renew_days: 30}",
            "certificate.renew_days: this setting was removed; it is a quarter of",
        ),
        ("[1]", "the file: Input should be"),
        ("a: [", "line 1 is not YAML"),
        ("queue: {min_run_s: 1, min_run_s: 2}", "line 1 is not YAML: the key 'min_run_s' is there"),
        ("queue: {min_run_s: yes}", "queue.min_run_s: a truth value (yes, no, on, off) is no"),
        ("queue: {min_run_s: .inf}", "queue.min_run_s: Input should be a finite number"),
    ],
)
def test_a_wrong_configuration_is_refused_by_path(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    assert said in f"{caught.value.message}\n{caught.value.hint}"


@pytest.mark.parametrize("path", REMOVED)
def test_a_removed_setting_is_refused_with_what_to_do_instead(tmp_path: Path, path: str) -> None:
    section, key = path.split(".")
    file = tmp_path / "config.yaml"
    file.write_text(f"{section}: {{{key}: 1}}")
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    assert caught.value.message == f"{file}: {path}: this setting was removed; {REMOVED[path]}"


def test_a_configuration_may_be_empty_missing_or_spelt_out(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("")
    assert read_config(file) == read_config(None)
    file.write_text("profile: {name: mine, constraints: [{kind: shares}]}\nmax_jobs_per_gpu: 3")
    assert read_config(file).profile.name == "mine"
    file.write_text("profile: ojpp")
    assert read_config(file).shares == 16
    with pytest.raises(ConfigError, match="nowhere"):
        read_config(tmp_path / "nowhere")


def test_every_key_of_the_configuration_is_in_the_documentation() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "extender.md").read_text()
    assert [key for key in ExtenderConfig.model_fields if f"`{key}`" not in text] == []
