"""Requests as they go over the wire, answers as typed errors."""

from datetime import UTC, datetime, timedelta

import pytest
from fake_api import pod, pod_list, status

from tandem.errors import TandemError
from tandem.kube import errors
from tandem.kube.client import KubeClient
from tandem.kube.events import EventRecorder
from tandem.kube.resource import GPU_JOBS, GPU_NODES, NODES, PODS


def test_paths():
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "p", "binding") == "/api/v1/namespaces/ns/pods/p/binding"
    assert NODES.path(None, "n") == "/api/v1/nodes/n"
    assert GPU_NODES.path("ignored", "n") == "/apis/tandem.gpu/v1alpha1/gpunodes/n"
    assert GPU_JOBS.path("a/../b") == "/apis/tandem.gpu/v1alpha1/namespaces/a%2F..%2Fb/gpujobs"


def test_bind_is_one_write_with_preconditions_and_annotations(serve):
    api = serve(lambda request: (201, {"kind": "Status", "status": "Success"}))
    client = KubeClient.with_token(api.host, "t")
    client.bind(
        "ns", "p", "n1", uid="u", resource_version="7", annotations={"tandem.gpu/x": "GPU-1"}
    )
    (request,) = api.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/ns/pods/p/binding")
    assert request.body["metadata"] == {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {"tandem.gpu/x": "GPU-1"},
    }
    assert request.body["target"]["name"] == "n1"


def test_patches_say_what_they_are(serve):
    api = serve(lambda request: (200, {}))
    client = KubeClient.with_token(api.host, "t")
    client.patch(GPU_JOBS, "j", {"status": {}}, "ns", subresource="status")
    client.patch(PODS, "p", [], "ns", kind="json")
    merge, json_patch = api.requests
    assert merge.path.endswith("/gpujobs/j/status")
    assert merge.headers["Content-Type"] == "application/merge-patch+json"
    assert merge.query == {"fieldManager": "tandem"}
    assert json_patch.headers["Content-Type"] == "application/json-patch+json"
    assert json_patch.body == []


def test_list_follows_the_pages(serve):
    pages = [pod_list(3, pod("a", 1), continue_token="t"), pod_list(3, pod("b", 2))]
    api = serve(lambda request: pages.pop(0))
    items = KubeClient.with_token(api.host, "t").list(PODS, "ns", label_selector="x=y")
    assert [item["metadata"]["name"] for item in items] == ["a", "b"]
    assert api.requests[1].query == {"limit": "100", "labelSelector": "x=y", "continue": "t"}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (status(404, "NotFound"), errors.NotFound),
        (status(409, "Conflict"), errors.Conflict),
        (status(409, "AlreadyExists"), errors.AlreadyExists),
        (status(410, "Gone"), errors.Gone),
        (status(410, "Expired"), errors.Gone),
        (status(403, "Forbidden"), errors.Forbidden),
        (status(401, "Unauthorized"), errors.Forbidden),
        (status(422, "Invalid"), errors.Invalid),
        (status(429, "TooManyRequests", retryAfterSeconds=3), errors.TooManyRequests),
        (status(504, "Timeout"), errors.Unavailable),
        ((502, {"no": "status"}), errors.Unavailable),
    ],
)
def test_errors_are_typed(serve, answer, kind):
    api = serve(lambda request: answer)
    with pytest.raises(kind) as caught:
        KubeClient.with_token(api.host, "t").get(PODS, "p", "ns")
    assert type(caught.value) is kind
    assert caught.value.status == answer[0]
    assert caught.value.message
    if kind is errors.TooManyRequests:
        assert caught.value.retry_after_s == 3


READY, UNREADY, REFUSED = (200, {}), (500, {}), status(403, "Forbidden")


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([READY], errors.Forbidden),
        ([UNREADY], errors.Unavailable),
        ([REFUSED, UNREADY], errors.Unavailable),
        ([REFUSED, READY], errors.Forbidden),
        ([REFUSED, REFUSED], errors.Forbidden),  # who we are may not even ask
        ([status(404, "NotFound")], errors.Forbidden),  # a proxy that knows objects alone
    ],
)
def test_a_refusal_counts_once_the_api_server_is_ready(serve, monkeypatch, answers, kind):
    monkeypatch.setattr("tandem.kube.client.ROLES_READ_S", 0.01)
    left = list(answers)
    api = serve(lambda request: left.pop(0) if request.path == "/readyz" else REFUSED)
    with pytest.raises(kind) as caught:
        KubeClient.with_token(api.host, "t").create(PODS, {"metadata": {"name": "p"}}, "ns")
    assert left == []
    assert [request.method for request in api.requests] == ["POST", *["GET"] * len(answers)]
    assert kind is errors.Forbidden or not caught.value.maybe_done


def test_many_refusals_ask_once_whether_the_api_server_is_ready(serve, monkeypatch):
    """As when a namespace with many pods is being deleted, in which no event may be written."""
    monkeypatch.setattr("tandem.kube.client.READY_FOR_S", 3600.0)
    api = serve(lambda request: READY if request.path == "/readyz" else REFUSED)
    client = KubeClient.with_token(api.host, "t")
    for _ in range(20):
        with pytest.raises(errors.Forbidden):
            client.get(PODS, "p", "ns")
    asked = [request.path for request in api.requests].count("/readyz")
    assert asked == 1


def test_no_connection_means_certainly_not_done():
    with pytest.raises(errors.Unavailable) as caught:
        KubeClient.with_token("http://127.0.0.1:9", "t").get(PODS, "p", "ns")
    assert not caught.value.maybe_done


def test_a_dropped_answer_means_perhaps_done(serve):
    def drop(request):
        raise ConnectionAbortedError

    api = serve(drop)
    api.server.handle_error = lambda *args: None
    with pytest.raises(errors.Unavailable) as caught:
        KubeClient.with_token(api.host, "t").bind("ns", "p", "n", uid="u")
    assert caught.value.maybe_done
    assert len(api.requests) == 1, "a write is never repeated by itself"


def test_events_are_counted_not_repeated(serve):
    api = serve(lambda request: (200, {}))
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    recorder = EventRecorder(
        KubeClient.with_token(api.host, "t"), "tandem-queue", "host-1", now=lambda: now[0]
    )
    regarding = pod("p", 1)
    recorder.record(regarding, "Waiting", "no GPU with 12 GiB free")
    recorder.record(regarding, "Waiting", "no GPU with 12 GiB free")
    now[0] += timedelta(minutes=2)
    recorder.record(regarding, "Waiting", "no GPU with 12 GiB free")
    create, patch = api.requests
    assert create.body["regarding"]["uid"] == "uid-p"
    assert create.body["note"] == "no GPU with 12 GiB free"
    assert create.body["eventTime"] == "2026-01-01T00:00:00.000000Z"
    assert patch.path.endswith(create.body["metadata"]["name"])
    assert patch.body["series"]["count"] == 3


def test_events_that_cannot_be_written_stop_nothing(serve, caplog):
    api = serve(lambda request: status(403, "Forbidden"))
    recorder = EventRecorder(KubeClient.with_token(api.host, "t"), "c", "i")
    recorder.record(pod("p", 1), "Waiting", "x" * 5000)
    assert len(api.requests[0].body["note"]) == 1024
    assert "event not written" in caplog.text


@pytest.mark.parametrize("text", ["", "not: a kubeconfig", "contexts: {"])
def test_an_unusable_kubeconfig_is_explained_in_words(tmp_path, text):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(TandemError, match="credentials"):
        KubeClient.load(path)
    with pytest.raises(TandemError, match="credentials"):
        KubeClient.load(tmp_path / "absent")


def test_a_patch_with_another_uid_differs_from_an_invalid_one(serve):
    """The API server answers 422 in both cases; the body is the one of Kubernetes 1.34."""

    def refused(field):
        cause = {"reason": "FieldValueInvalid", "message": "Invalid value", "field": field}
        details = {"name": "j", "group": "batch", "kind": "Job", "causes": [cause]}
        status = {"kind": "Status", "code": 422, "reason": "Invalid", "details": details}
        return (422, status)

    fields = ["metadata.uid", "spec.suspend"]
    api = serve(lambda request: refused(fields.pop(0)))
    client = KubeClient.with_token(api.host, "t")
    with pytest.raises(errors.Replaced) as replaced:
        client.patch(PODS, "p", {"metadata": {"uid": "u"}}, "ns")
    assert replaced.value.status == 422
    with pytest.raises(errors.Invalid):
        client.patch(PODS, "p", {"metadata": {"uid": "u"}}, "ns")
