"""A service that does not answer differs from one that knows nothing, and is shown soon."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from extender_builders import gpu_job, load
from fastapi import FastAPI, HTTPException
from prometheus_client import CollectorRegistry
from test_extender_status import Site, view

from scheduler_extender import heartbeat, predictions
from scheduler_extender.heartbeat import Heartbeat
from scheduler_extender.leader import LeaseWatch
from scheduler_extender.predictions import AwayError, HttpPredictor
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.serving.status.sources import local_profiles, remote_profiles
from tandem.cli.questions import answers
from tandem.contracts.names import PREDICTOR_AWAY
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import Demand, GPUJobStatus, Load, Source
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import LEASES

NOW = 1_800_000_000.0
#: By the chart: the ServiceMonitor's interval, and that of the group tandem.silent.
SCRAPED_S, EVALUATED_S = 10.0, 5.0
DEMAND = Demand(gpus_per_pod=1, model="bert")


@pytest.fixture
def site() -> Site:
    return Site()


def predictor(status: int | None) -> HttpPredictor:
    """Return a predictor that answers with a status, or not at all."""

    def answer(request: httpx.Request) -> httpx.Response:
        if status is None:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(status, json={"error": "?"})

    return HttpPredictor("http://predictor", transport=httpx.MockTransport(answer))


@pytest.mark.parametrize("status", [None, 500, 503, 200])
def test_no_usable_answer_is_not_the_answer_that_a_model_is_unknown(status: int | None) -> None:
    with pytest.raises(AwayError):
        asyncio.run(predictor(status).model("ml", "bert"))
    with pytest.raises(HTTPException) as error:
        asyncio.run(local_profiles(predictor(status))("ml", "bert"))
    assert (error.value.status_code, error.value.detail) == (503, "the predictor does not answer")


def test_a_model_that_the_predictor_does_not_know_is_unknown() -> None:
    assert asyncio.run(predictor(404).model("ml", "bert")) is None
    assert asyncio.run(local_profiles(predictor(404))("ml", "bert")) is None


def test_the_process_in_front_tells_them_apart_too() -> None:
    app, status = FastAPI(), 404

    @app.get("/v1/profiles/{namespace}/{name}")
    async def profile(namespace: str, name: str) -> None:
        raise HTTPException(status, "the predictor does not answer")

    async def ask() -> object:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await remote_profiles(client)("ml", "bert")

    assert asyncio.run(ask()) is None
    status = 503
    with pytest.raises(HTTPException) as error:
        asyncio.run(ask())
    assert (error.value.status_code, error.value.detail) == (503, "the predictor does not answer")


@pytest.mark.parametrize(("status", "away"), [(None, True), (502, True), (422, False)])
def test_a_job_says_whether_the_predictor_answered(status: int | None, away: bool) -> None:
    said = asyncio.run(predictor(status).predict("ml", DEMAND, None))
    assert said.away is away
    (condition,) = lifecycle.predicted(GPUJobStatus(), said, NOW)
    assert (condition.reason == PREDICTOR_AWAY) is away


def test_what_earlier_runs_have_shown_counts_while_the_predictor_is_away() -> None:
    said = asyncio.run(predictor(None).predict("ml", DEMAND, None))
    seen = said.load.model_copy(update={"memory_source": Source.OBSERVED})
    (condition,) = lifecycle.predicted(GPUJobStatus(), said.model_copy(update={"load": seen}), NOW)
    assert condition.reason == "Observed"


@pytest.mark.parametrize(
    ("reason", "words"), [("WholeGpu", "was not known"), (PREDICTOR_AWAY, "did not answer")]
)
def test_tandem_why_says_which_of_the_two_it_was(site: Site, reason: str, words: str) -> None:
    made = gpu_job("job-new", job_load=load(8))
    made["spec"]["demand"]["model"] = "bert"
    made["status"] |= {
        "phase": "Queued",
        "message": "waits",
        "conditions": [
            {"type": "Predicted", "status": "False", "reason": reason,
             "lastTransitionTime": "2026-01-01T00:00:00Z"}
        ],
    }  # fmt: skip
    made["status"]["load"] |= {"memorySource": "whole-gpu", "utilisationSource": "whole-gpu"}
    site.state.upsert("gpujobs", made)
    site.follow()
    job = view(site.cluster, "job", "ml", "job-new")
    (line,) = (line for line in answers(job, "2026-01-01T00:00:00Z") if line.startswith("  model"))
    assert words in line


def test_a_heartbeat_notices_a_service_that_died_in_a_quiet_hour() -> None:
    registry, up = CollectorRegistry(), [True]

    async def ask() -> bool:
        return up[0]

    beats = Heartbeat("predictor", ask, registry)

    def beat(answers: bool) -> tuple[bool, float | None]:
        up[0] = answers
        asyncio.run(beats.beat())
        return beats.silent, registry.get_sample_value("tandem_extender_predictor_up")

    assert [beat(each) for each in (True, False, False, False, True)] == [
        (False, 1), (False, 1), (True, 0), (True, 0), (False, 1),
    ]  # fmt: skip


def test_a_dead_service_is_noticed_within_30_s() -> None:
    """Just after it has answered, it dies: the next two questions get no answer in time.

    Until an alert fires, Prometheus asks the extender once, and its rules are evaluated once.
    """
    asked_s = heartbeat.EVERY_S + heartbeat.AGAIN_S + heartbeat.MISSES * predictions.TIMEOUT_S
    assert heartbeat.MISSES == 2
    assert asked_s + SCRAPED_S + EVALUATED_S < 30


@pytest.mark.parametrize("status", [None, 500, 200])
def test_the_predictor_is_asked_whether_it_lives(status: int | None) -> None:
    assert asyncio.run(predictor(status).answers()) is (status == 200)


def test_services_that_do_not_answer_need_attention(site: Site) -> None:
    silent: dict[str, list[str]] = {}
    site.changes._silent = lambda: dict(silent)
    site.follow()
    assert view(site.cluster, "overview")["attention"] == []
    silent |= {"predictor": [], "scheduler": []}
    before = site.cluster.revision
    site.follow()
    assert site.cluster.revision > before, "pages that are open are updated"
    kinds = [each["kind"] for each in view(site.cluster, "overview")["attention"]]
    assert kinds == ["predictorSilent", "schedulerSilent"]
    silent.clear()
    site.follow()
    assert view(site.cluster, "overview")["attention"] == []


def test_there_is_no_leader_once_no_scheduler_renews_the_lease() -> None:
    api, now = MemoryCluster(), [NOW]
    watch = LeaseWatch(api, "ns", "lease", "me", lambda: now[0])
    assert not watch.without_leader(), "not known before the first look"
    spec = {"holderIdentity": "other_1", "leaseDurationSeconds": 15, "leaseTransitions": 1,
            "renewTime": lifecycle.rfc3339(NOW)}  # fmt: skip
    api.create(LEASES, {"metadata": {"name": "lease", "namespace": "ns"}, "spec": spec})
    watch.look()
    assert not watch.without_leader()
    assert not watch.active()
    now[0] += 16
    assert watch.without_leader()


def test_there_is_no_leader_where_no_scheduler_could_ever_make_the_lease() -> None:
    """As where RBAC refuses it: there is no renewal that could expire."""
    now = [NOW]
    watch = LeaseWatch(MemoryCluster(), "ns", "lease", "me", lambda: now[0])
    watch.look()
    assert not watch.without_leader(), "kube-scheduler may be starting"
    now[0] += 59
    watch.look()
    assert not watch.without_leader()
    now[0] += 1
    watch.look()
    assert watch.without_leader()


def test_a_prediction_of_the_predictor_is_an_answer() -> None:
    assert not Prediction(load=Load.model_validate(load(8)), explanation="by the formula").away
