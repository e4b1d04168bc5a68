"""Ten questions of users and operators: each is answered by one command of the CLI.

The commands run against the extender's own views of a small cluster.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from click.testing import Result
from extender_builders import NOW, gpu_job, gpu_node, load, pod
from fastapi import FastAPI
from test_extender_status import Site, slowdown
from typer.testing import CliRunner

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.quotas.config import Quota
from scheduler_extender.serving.api import read_router
from scheduler_extender.serving.readers import everybody
from scheduler_extender.serving.status.publisher import Publisher
from scheduler_extender.serving.status.routes import status_router
from scheduler_extender.serving.status.sources import local_changes
from tandem.cli.main import build_app
from tandem.cli.reach import Reader
from tandem.errors import TandemError
from tandem.kube.tunnel import Answer
from tandem.policy.catalog import load_profile

WAITS = (
    "wants 1 GPU(s) on one node; 0 of 3 GPU(s) can take it | 2 GPU(s) refused by shares"
    " (n0/a, n0/b): 2 of 2 shares taken | 1 GPU(s) refused by memory_capacity (n1/c): needs"
    " 17.4 GiB of memory; 15.6 GiB there"
)


@pytest.fixture(scope="module")
def site() -> Site:
    """One GPU is shared, one has a job by itself, one is idle."""
    found = Site([(Quota(namespace="ml", gpus=1), 3, 0.0)])
    state = found.state
    state.upsert("gpunodes", gpu_node("n0", "a", "b"))
    state.upsert("gpunodes", gpu_node("n1", "c"))
    found.run("bert", "n0", "a", observed=slowdown(0.25, "vgg"))
    found.run("vgg", "n0", "a", namespace="other", observed=slowdown(0.1))
    found.run("solo", "n0", "b")
    waiting = gpu_job("job-gpt", namespace="ml", job_load=load(17, 1, 0.2))
    waiting["spec"]["demand"]["model"] = "gpt2"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "gpt", "uid": "w-gpt"}
    waiting["spec"]["workload"] = owner
    waiting["status"] |= {
        "phase": "Queued",
        "reason": "Unschedulable",
        "message": WAITS,
        "position": 0,
        "queuedAt": rfc3339(NOW - 720),
        "waitingSince": rfc3339(NOW - 720),
        "expectedStart": {
            "earliest": rfc3339(NOW + 86400 * 3650),
            "latest": rfc3339(NOW + 86400 * 3651),
            "asOf": rfc3339(NOW),
        },
    }
    state.upsert("gpujobs", waiting)
    waits = pod("gpt-x7k2p", namespace="ml")
    waits["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    state.upsert("pods", waits)
    stopped = gpu_job("job-old", namespace="ml", job_load=load(4))
    stopped["status"] |= {
        "phase": "Suspended",
        "reason": "Preempted",
        "message": "it gave up its GPUs for ml/job-bert, which has had less service",
        "queuedAt": rfc3339(NOW - 7200),
        "preemption": {
            "by": "ml/job-bert",
            "method": "suspend",
            "requestedAt": rfc3339(NOW - 60),
        },
        "decisions": [
            {
                "at": rfc3339(NOW - 60),
                "what": "Suspended",
                "why": "job-bert has had 0 GPU-seconds of service and this job 7200",
            }
        ],
    }
    state.upsert("gpujobs", stopped)
    return found


@pytest.fixture(autouse=True)
def service(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands read from the extender's routes in this process."""

    async def answer(path: str, query: dict[str, str]) -> httpx.Response:
        app = FastAPI()
        publisher = Publisher(local_changes(site.changes))
        app.include_router(status_router(publisher, everybody, None, None))
        app.include_router(read_router(site.state, load_profile("tandem").pipeline()))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path, params=query)

    def answered(_: Reader, path: str, query: dict[str, str]) -> Answer:
        found = asyncio.run(answer(path, query))
        return Answer(found.status_code, found.content)

    monkeypatch.setattr(Reader, "_answer", answered)
    monkeypatch.setattr(Reader, "own_namespace", "ml")
    monkeypatch.delenv("COLUMNS", raising=False)  # as in a pipe


def run(*args: str) -> Result:
    answer = CliRunner().invoke(build_app(), list(args))
    assert answer.exit_code == 0, answer.exception
    return answer


def lines(*args: str) -> dict[str, str]:
    """Return what `tandem why` says, by the label of its line."""
    said = {}
    for line in run(*args).stdout.splitlines()[1:]:
        label, words = line[2:23].strip(), line[23:]
        said.setdefault(label or "more", words)
    return said


def test_why_does_my_job_wait() -> None:
    """By the name of the Job, of the GPUJob, or of the pod."""
    for name in ("gpt", "job-gpt", "ml/gpt", "gpt-x7k2p"):
        said = run("why", name).stdout
        assert "0 of 3 GPU(s) can take it" in said
        assert "needs 17.4 GiB of memory; 15.6 GiB there" in said


def test_when_will_it_start() -> None:
    assert lines("why", "gpt")["will start"].startswith("in ")
    queue = run("queue").stdout
    assert "job-gpt" in queue
    assert ".." in queue


def test_what_slows_it_down() -> None:
    said = lines("why", "bert")
    assert said["slowed down"].startswith("25%")
    assert said["shares with"] == "other/job-vgg"


def test_which_gpus_are_idle() -> None:
    found = json.loads(run("gpus", "--idle", "--json").stdout)["gpus"]
    assert [(each["node"], each["gpu"]) for each in found] == [("n1", "c")]


def test_did_sharing_pay() -> None:
    said = run("sharing").stdout
    # 1 / 1.25 + 1 / 1.1 - 1
    assert "It pays: without it the same work needs 0.7 GPUs more." in said
    assert "job-bert" in said


def test_why_was_it_stopped() -> None:
    said = lines("why", "job-old")
    assert said["stopped"].startswith("suspended at")
    assert said["stopped"].endswith("for ml/job-bert")
    assert any("7200" in words for words in said.values())


def test_what_load_was_predicted() -> None:
    said = lines("why", "bert")
    assert "GiB at most" in said["predicted"]
    assert "% utilisation" in said["predicted"]


def test_is_my_model_known() -> None:
    assert "gpt2" in lines("why", "gpt")["model"]
    assert "none is named" in lines("why", "bert")["model"]


def test_which_namespace_is_over_quota() -> None:
    first = json.loads(run("quotas", "--json").stdout)["rows"][0]
    assert (first["namespace"], first["overQuota"]) == ("ml", True)
    assert run("quotas").stdout.count("over quota") == 1


def test_what_is_broken_is_answered_by_the_doctor() -> None:
    """`tests/cli/test_cli_doctor.py` has the answers."""
    answer = CliRunner().invoke(build_app(), ["doctor", "--help"])
    assert "what is wrong" in answer.stdout


def test_a_job_that_is_not_there_is_an_error_that_says_what_to_do() -> None:
    answer = CliRunner().invoke(build_app(), ["why", "nothing-like-that"])
    assert isinstance(answer.exception, TandemError)
    assert "ml/nothing-like-that" in answer.exception.message
    assert "tandem jobs" in answer.exception.hint


def test_the_views_have_json() -> None:
    assert json.loads(run("why", "gpt", "--json").stdout)["name"] == "job-gpt"
    assert json.loads(run("queue", "--json").stdout)["total"] == 2
    assert json.loads(run("sharing", "--json").stdout)["gpus"] == 1
    found: dict[str, Any] = json.loads(run("top", "--json").stdout)
    assert found["overview"]["gpus"]["total"] == 3
    assert found["queue"]["total"] == 2


def test_top_draws_what_the_extender_answers() -> None:
    said = run("top").stdout
    assert "3 on 2 nodes" in said
    assert "ml/job-bert (+25%), other/job-vgg (+10%)" in said
    assert "ml/job-gpt" in said


def test_a_long_queue_is_read_page_by_page_up_to_the_limit() -> None:
    assert len(json.loads(run("queue", "--json", "--limit", "1").stdout)["jobs"]) == 1
    assert "1 more wait" in run("queue", "--limit", "1").stdout
