"""The demo's part of kube-scheduler, against an extender that answers what the test says."""

from __future__ import annotations

import json

import httpx
import pytest

from tandem.contracts import names
from tandem.errors import TandemError
from tandem_demo.scheduler import Scheduler


class Extender:
    """Answers each verb with what is set here, and keeps what it was asked."""

    def __init__(self):
        self.answers = {
            "filter": {"NodeNames": ["n1", "n2"]},
            "prioritize": [{"Host": "n1", "Score": 3}, {"Host": "n2", "Score": 10}],
            "bind": {"Error": ""},
        }
        self.asked = []

    def __call__(self, request):
        verb = request.url.path.removeprefix("/")
        self.asked.append((verb, json.loads(request.content)))
        answer = self.answers[verb]
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def verbs(self):
        return [verb for verb, _ in self.asked]


@pytest.fixture
def extender():
    return Extender()


@pytest.fixture
def scheduler(extender):
    transport = httpx.MockTransport(extender)
    return Scheduler(httpx.Client(base_url="http://extender", transport=transport))


def pod(name="a", version="1", **spec):
    return {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "uid": f"uid-{name}",
            "resourceVersion": version,
        },
        "spec": {"schedulerName": names.SCHEDULER_NAME} | spec,
    }


def test_a_pod_goes_through_filter_prioritize_and_bind_to_the_best_node(scheduler, extender):
    scheduler.step([pod()], ["n1", "n2", "n3"], 0.0)
    assert extender.verbs() == ["filter", "prioritize", "bind"]
    assert extender.asked[0][1]["NodeNames"] == ["n1", "n2", "n3"]
    assert extender.asked[1][1]["NodeNames"] == ["n1", "n2"]
    assert extender.asked[2][1] == {
        "PodName": "a", "PodNamespace": "demo", "PodUID": "uid-a", "Node": "n2"
    }  # fmt: skip
    assert scheduler.bound == 1


def test_prioritize_is_skipped_when_one_node_is_left(scheduler, extender):
    extender.answers["filter"] = {"NodeNames": ["n1"]}
    scheduler.step([pod()], ["n1", "n2"], 0.0)
    assert extender.verbs() == ["filter", "bind"]


@pytest.mark.parametrize(
    "spec",
    [
        {"schedulingGates": [{"name": names.SCHEDULING_GATE}]},
        {"nodeName": "n1"},
        {"schedulerName": "default-scheduler"},
    ],
)
def test_gated_bound_and_others_pods_are_left_alone(scheduler, extender, spec):
    scheduler.step([pod(**spec)], ["n1"], 0.0)
    assert extender.asked == []


def test_a_refused_pod_waits_with_the_reason_and_backs_off(scheduler, extender):
    extender.answers["filter"] = {"NodeNames": None, "FailedNodes": {"n1": "no share is free"}}
    tried = []
    for tenths in range(80):
        before = len(extender.asked)
        scheduler.step([pod()], ["n1"], tenths / 10)
        if len(extender.asked) > before:
            tried.append(tenths / 10)
    assert scheduler.reasons == {"uid-a": "0/1 nodes are available: n1: no share is free"}
    assert tried == [0.0, 1.0, 3.0, 7.0]


def test_a_changed_pod_is_tried_at_once_and_a_failed_bind_puts_it_back(scheduler, extender):
    extender.answers["bind"] = {"Error": "the last share was taken"}
    scheduler.step([pod()], ["n1", "n2"], 0.0)
    assert scheduler.reasons == {"uid-a": "the last share was taken"}
    extender.answers["bind"] = {"Error": ""}
    scheduler.step([pod(version="1")], ["n1", "n2"], 0.1)
    assert scheduler.bound == 0
    scheduler.step([pod(version="2")], ["n1", "n2"], 0.2)
    assert (scheduler.bound, scheduler.refused, scheduler.reasons) == (1, 1, {})


def test_an_error_of_the_extender_is_a_refusal_and_silence_ends_the_demo(scheduler, extender):
    extender.answers["filter"] = httpx.Response(503)
    scheduler.step([pod()], ["n1"], 0.0)
    assert scheduler.reasons == {"uid-a": "the extender answered filter with status 503"}

    def silent(request):
        raise httpx.ConnectError("refused", request=request)

    scheduler.client = httpx.Client(
        base_url="http://extender", transport=httpx.MockTransport(silent)
    )
    with pytest.raises(TandemError, match="did not answer filter"):
        scheduler.step([pod("b")], ["n1"], 0.0)
