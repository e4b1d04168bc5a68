"""What kubelets say of Tandem's own pods: which of them do not answer, and where that shows."""

from __future__ import annotations

from typing import Any

import pytest
from extender_builders import gpu_node
from prometheus_client import CollectorRegistry
from test_extender_status import NOW, Site, view

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.serving.own_pods import STARTS_WITHIN_S, OwnPods, _trim, own_pod
from scheduler_extender.serving.status.objects import Scope
from tandem.kube.reflector import EventType

Object = dict[str, Any]


def pod(
    name: str,
    component: str = "agent",
    *,
    ready: bool = True,
    node: str = "n0",
    age_s: float = 3600.0,
    **status: Any,
) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "tandem",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": rfc3339(NOW - age_s),
            "labels": {"app.kubernetes.io/component": component},
        },
        "spec": {"nodeName": node},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            **status,
        },
    }


class Cluster:
    """Our pods, as two followers would hear of them: the page, and Prometheus."""

    def __init__(self) -> None:
        self.now_s = NOW
        self.changed: list[str] = []
        self.pods = OwnPods(lambda: self.now_s, self.changed.append)
        self.registry = CollectorRegistry()
        self.pods.count(self.registry)

    def put(self, raw: Object, event: EventType = EventType.MODIFIED) -> None:
        self.pods.take(event, own_pod(raw))

    def counted(self, component: str) -> float | None:
        series = "tandem_extender_silent_pods"
        return self.registry.get_sample_value(series, {"component": component})


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_pod_that_answered_and_no_longer_does_is_silent_until_it_answers(
    cluster: Cluster,
) -> None:
    cluster.put(pod("a"))
    assert (cluster.counted("agent"), cluster.pods.agent_answers("n0")) == (0, True)
    cluster.put(pod("a", ready=False))
    assert (cluster.counted("agent"), cluster.pods.agent_answers("n0")) == (1, False)
    assert (cluster.counted("scheduler"), cluster.counted("predictor")) == (0, 0)
    cluster.put(pod("a"))
    assert (cluster.counted("agent"), cluster.pods.agent_answers("n0")) == (0, True)
    assert cluster.changed == ["n0"] * 3


@pytest.mark.parametrize("api_server_behind_s", [-3600.0, 0.0, 3600.0])
def test_a_pod_may_take_a_while_to_start_by_our_own_clock(
    cluster: Cluster, api_server_behind_s: float
) -> None:
    cluster.put(pod("a", ready=False, age_s=api_server_behind_s))
    assert (cluster.counted("agent"), cluster.pods.agent_answers("n0")) == (0, True)
    cluster.now_s += STARTS_WITHIN_S
    cluster.put(pod("a", ready=False, age_s=api_server_behind_s))
    assert (cluster.counted("agent"), cluster.pods.agent_answers("n0")) == (0, True)
    cluster.now_s += 1
    assert (cluster.counted("agent"), cluster.pods.agent_answers("n0")) == (1, False)


def test_a_pod_whose_container_has_failed_is_not_starting(cluster: Cluster) -> None:
    failed = [{"name": "agent", "ready": False, "restartCount": 1}]
    cluster.put(pod("a", ready=False, age_s=1, containerStatuses=failed))
    assert (cluster.counted("agent"), cluster.pods.agent_answers("n0")) == (1, False)


ENDS = pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["metadata"].update(deletionTimestamp=rfc3339(NOW)),
        lambda raw: raw["status"].update(phase="Failed"),
    ],
)


@ENDS
def test_a_pod_that_ends_answers_for_no_other(cluster: Cluster, change: Any) -> None:
    cluster.put(pod("b"))
    going = pod("a")
    change(going)
    cluster.put(going)
    cluster.put(pod("b", ready=False))
    assert not cluster.pods.agent_answers("n0")


@ENDS
def test_a_pod_that_ends_is_not_silent(cluster: Cluster, change: Any) -> None:
    cluster.put(pod("a"))
    going = pod("a", ready=False)
    change(going)
    cluster.put(going)
    assert cluster.counted("agent") == 0


def test_a_pod_that_is_gone_is_not_silent(cluster: Cluster) -> None:
    cluster.put(pod("a"))
    cluster.put(pod("a", ready=False))
    cluster.put(pod("a", ready=False), EventType.DELETED)
    assert (cluster.counted("agent"), cluster.pods.agent_answers("n0")) == (0, True)


def test_a_node_whose_next_agent_answers_is_not_silent(cluster: Cluster) -> None:
    cluster.put(pod("a"))
    cluster.put(pod("b"))
    cluster.put(pod("a", ready=False))
    assert cluster.pods.agent_answers("n0")
    cluster.put(pod("b", ready=False))
    assert not cluster.pods.agent_answers("n0")


def test_where_no_agent_has_a_pod_nothing_is_known(cluster: Cluster) -> None:
    assert cluster.pods.agent_answers("n0")


def test_the_container_that_does_not_answer_is_named(cluster: Cluster) -> None:
    statuses = {
        "initContainerStatuses": [{"name": "extender", "ready": False}],
        "containerStatuses": [{"name": "kube-scheduler", "ready": True}],
    }
    cluster.put(pod("tandem-scheduler-x", "scheduler", ready=False, **statuses))
    cluster.put(pod("tandem-predictor-x", "predictor", ready=False))
    cluster.now_s += STARTS_WITHIN_S + 1
    found = cluster.pods.silent("scheduler", "predictor")
    assert list(map(str, found)) == ["tandem-predictor-x", "tandem-scheduler-x (extender)"]
    assert cluster.pods.silent("agent") == []


def test_what_says_nothing_new_ends_in_the_thread_that_read_it() -> None:
    known = _trim(pod("a"), None)
    again = pod("a")
    again["metadata"]["resourceVersion"] = "2"
    assert _trim(again, known) is known
    assert _trim(pod("a", ready=False), known) != known


def test_a_silent_agent_shows_on_the_page_long_before_its_report_is_too_old() -> None:
    site = Site()
    answers = {"n0": True, "n1": True}
    site.changes._agent_answers = lambda node: answers[node]
    for node, gpu in (("n0", "a"), ("n1", "b")):
        site.state.upsert("gpunodes", gpu_node(node, gpu))
    site.follow()
    assert view(site.cluster, "overview")["attention"] == []
    answers["n1"] = False
    site.changes.node_changed("n1")
    site.follow()
    (row,) = view(site.cluster, "overview")["attention"]
    assert (row["kind"], row["count"]) == ("silent", 1)
    (node,) = view(site.cluster, "nodes", **row["filter"])["rows"]
    assert node["node"] == "n1"
    answers["n1"] = True
    site.changes.node_changed("n1")
    site.follow()
    assert view(site.cluster, "overview")["attention"] == []
    assert site.state.gpus.fresh.all(), "placement goes by the reports"


def test_silent_replicas_are_named_to_who_sees_the_whole_cluster() -> None:
    site = Site()
    site.changes._silent = lambda: {"replica": ["tandem-scheduler-x (extender)"]}
    site.follow()
    (row,) = view(site.cluster, "overview")["attention"]
    assert (row["kind"], row["count"]) == ("replicaSilent", 1)
    assert row["names"] == ["tandem-scheduler-x (extender)"]
    assert view(site.cluster, "overview", scope=Scope("ml"))["attention"] == []
