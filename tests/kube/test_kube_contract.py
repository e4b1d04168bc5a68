"""One contract for the API server in memory and the real one; the docs' table is made of it.

Each test is a behaviour that Tandem relies on, and runs on both. The real one is right.
`python tests/kube/test_kube_contract.py` writes the table of docs/evidence/kubernetes.md.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.pods import pod_info
from tandem.contracts import crds, names
from tandem.kube import errors
from tandem.kube.client import KubeClient
from tandem.kube.memory import MemoryCluster
from tandem.kube.reflector import Reflector
from tandem.kube.resource import CONFIG_MAPS, GPU_NODES, JOBS, MODEL_PROFILES, PODS

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "kubernetes.md"
HEAD = "## The API server in memory, compared with the real one\n"
GATE, OTHER_GATE = {"name": "tandem.gpu/queue"}, {"name": "example.com/other"}
DIFFERENCES = {
    "A bound pod is deleted after its grace period": "the double removes it at once: it has no "
    "kubelet that would end the containers",
    "A disruption budget refuses an eviction": "the double has no controller that computes "
    "`disruptionsAllowed`; tests of evictions raise the 429 themselves",
    "A watch from a version that is compacted ends with 410": "the double calls its watchers in "
    "the process; the reflector's tests send 410 from an HTTP server",
    "Admission webhooks and policies judge every write": "the double calls one function, for the "
    "creation of pods",
    "Objects of Kubernetes' own kinds are validated by their schemas": "the double checks names, "
    "labels, sizes and our own definitions, and the gates and the node of a pod",
    "The garbage collector deletes what an owner leaves": "the double deletes only what a request "
    "names",
}


class Side:
    """One of the two, in a namespace of the test's own."""

    def __init__(self, api: Any, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    def config(self, name: str = "a", **metadata: Any) -> dict:
        body = {"metadata": {"name": name, **metadata}, "data": {"x": "1"}}
        return self.api.create(CONFIG_MAPS, body, self.namespace)

    def pod(self, name: str = "p", **spec: Any) -> dict:
        body = {
            "metadata": {"name": name},
            # No scheduler of that name: only the test binds.
            "spec": {"schedulerName": "none", "containers": [{"name": "c", "image": "i"}], **spec},
        }
        return self.api.create(PODS, body, self.namespace)

    def get(self, resource: Any, name: str) -> dict:
        return self.api.get(resource, name, self.namespace)

    def patch(self, resource: Any, name: str, body: dict, **more: Any) -> dict:
        return self.api.patch(resource, name, body, self.namespace, **more)

    def names(self, resource: Any, **selectors: str) -> set[str]:
        pages = self.api.pages(resource, self.namespace, **selectors)
        found = {item["metadata"]["name"] for page in pages for item in page.items}
        return found - {"kube-root-ca.crt"}

    def watch(self, resource: Any, take: Callable[[Any, dict], None]) -> Callable[[], None]:
        """Follow the namespace; return what ends it."""
        if isinstance(self.api, MemoryCluster):
            self.api.watch(resource, take)
            return lambda: None
        reflector = Reflector(self.api, resource, take, namespace=self.namespace)
        reflector.start()
        assert reflector.synced.wait(60)
        return reflector.stop


@pytest.fixture(params=["double", pytest.param("real", marks=pytest.mark.controlplane)])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    if request.param == "double":
        yield Side(MemoryCluster(), "team")
        return
    plane = request.getfixturevalue("control_plane")
    for definition in crds.DEFINITIONS:
        plane.apply(definition.manifest())
        plane.await_definitions(definition.manifest()["metadata"]["name"])
    client = KubeClient.load(plane.kubeconfig())
    namespace = request.getfixturevalue("namespace")
    yield Side(client, namespace)
    with contextlib.suppress(errors.NotFound):
        client.delete(GPU_NODES, f"node-{namespace}")
    client.close()


def version(item: dict) -> str:
    return item["metadata"]["resourceVersion"]


# --- creation -----------------------------------------------------------------------------------


def test_a_new_object_has_a_uid_a_version_and_a_time(side: Side) -> None:
    made = side.config()["metadata"]
    assert made["uid"]
    assert made["resourceVersion"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["creationTimestamp"])
    assert made["namespace"] == side.namespace


def test_a_name_that_is_taken_is_a_conflict_of_its_own_kind(side: Side) -> None:
    side.config()
    with pytest.raises(errors.AlreadyExists):
        side.config()


def test_a_generated_name_begins_with_its_prefix_and_differs(side: Side) -> None:
    body = {"metadata": {"generateName": "gen-"}, "data": {}}
    made = [side.api.create(CONFIG_MAPS, body, side.namespace) for _ in range(2)]
    first, second = (each["metadata"]["name"] for each in made)
    assert first != second
    assert first.startswith("gen-")


def test_the_successor_of_a_name_has_another_uid(side: Side) -> None:
    first = side.config()["metadata"]["uid"]
    side.api.delete(CONFIG_MAPS, "a", side.namespace)
    assert side.config()["metadata"]["uid"] != first


def test_an_object_that_is_not_there_is_named_in_the_error(side: Side) -> None:
    with pytest.raises(errors.NotFound) as error:
        side.get(CONFIG_MAPS, "none")
    assert error.value.details["name"] == "none"


# --- writes and their preconditions -------------------------------------------------------------


def test_each_change_has_a_new_version(side: Side) -> None:
    made = side.config()
    changed = side.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}})
    assert version(changed) != version(made)
    assert version(side.get(CONFIG_MAPS, "a")) == version(changed)


def test_a_write_that_changes_nothing_keeps_the_version(side: Side) -> None:
    made = side.config()
    assert version(side.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}})) == version(made)
    assert version(side.api.replace(CONFIG_MAPS, made, side.namespace)) == version(made)


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_a_patch_with_a_precondition_that_does_not_hold_is_refused(side: Side, field: str) -> None:
    made = side.config()
    side.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}})
    wrong = {"uid": "00000000-0000-0000-0000-000000000000", "resourceVersion": version(made)}
    with pytest.raises(errors.Replaced if field == "uid" else errors.Conflict) as refused:
        side.patch(CONFIG_MAPS, "a", {"metadata": {field: wrong[field]}, "data": {"x": "3"}})
    assert refused.value.status == (422 if field == "uid" else 409)
    assert side.get(CONFIG_MAPS, "a")["data"] == {"x": "2"}


def test_a_patch_of_an_older_version_with_another_uid_is_a_conflict(side: Side) -> None:
    made = side.config()
    side.api.delete(CONFIG_MAPS, "a", side.namespace)
    side.config()
    metadata = {key: made["metadata"][key] for key in ("uid", "resourceVersion")}
    with pytest.raises(errors.Conflict) as refused:
        side.patch(CONFIG_MAPS, "a", {"metadata": metadata, "data": {"x": "3"}})
    assert refused.value.status == 409
    assert side.get(CONFIG_MAPS, "a")["data"] == {"x": "1"}


def test_a_patch_with_preconditions_that_hold_is_written(side: Side) -> None:
    made = side.config()["metadata"]
    metadata = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    side.patch(CONFIG_MAPS, "a", {"metadata": metadata, "data": {"x": "3"}})
    assert side.get(CONFIG_MAPS, "a")["data"] == {"x": "3"}


def test_a_replacement_of_an_older_version_is_a_conflict(side: Side) -> None:
    made = side.config()
    side.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}})
    with pytest.raises(errors.Conflict):
        side.api.replace(CONFIG_MAPS, made | {"data": {"x": "3"}}, side.namespace)


def test_a_replacement_with_another_uid_is_a_conflict(side: Side) -> None:
    made = side.config()
    made["metadata"] = {"name": "a", "uid": "00000000-0000-0000-0000-000000000000"}
    with pytest.raises(errors.Conflict):
        side.api.replace(CONFIG_MAPS, made | {"data": {"x": "3"}}, side.namespace)


def test_a_merge_patch_merges_objects_replaces_lists_and_removes_with_null(side: Side) -> None:
    side.config(labels={"keep": "1", "go": "1"}, finalizers=["example.com/a", "example.com/b"])
    body = {"metadata": {"labels": {"go": None, "new": "1"}, "finalizers": ["example.com/b"]}}
    metadata = side.patch(CONFIG_MAPS, "a", body)["metadata"]
    assert metadata["labels"] == {"keep": "1", "new": "1"}
    assert metadata["finalizers"] == ["example.com/b"]
    side.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}})


def test_a_write_of_what_is_not_there_is_refused(side: Side) -> None:
    with pytest.raises(errors.NotFound):
        side.patch(CONFIG_MAPS, "none", {"data": {}})
    with pytest.raises(errors.NotFound):
        side.api.delete(CONFIG_MAPS, "none", side.namespace)


# --- the status subresource -----------------------------------------------------------------------


def test_a_write_of_the_status_changes_nothing_else(side: Side) -> None:
    side.pod()
    body = {"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 5}}
    side.patch(PODS, "p", body, subresource="status")
    pod = side.get(PODS, "p")
    assert pod["status"]["phase"] == "Running"
    assert "activeDeadlineSeconds" not in pod["spec"]


def test_a_write_of_the_object_leaves_the_status_as_it_is(side: Side) -> None:
    side.pod()
    side.patch(PODS, "p", {"status": {"phase": "Running"}}, subresource="status")
    side.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}})
    pod = side.get(PODS, "p")
    assert (pod["metadata"]["labels"], pod["status"]["phase"]) == ({"a": "b"}, "Running")


# --- deletion -----------------------------------------------------------------------------------


def test_a_deletion_with_another_uid_is_a_conflict(side: Side) -> None:
    side.config()
    wrong = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(errors.Conflict):
        side.api.delete(CONFIG_MAPS, "a", side.namespace, uid=wrong)
    assert side.names(CONFIG_MAPS) == {"a"}


def test_an_object_with_a_finalizer_is_being_deleted_until_it_is_removed(side: Side) -> None:
    side.config(finalizers=["example.com/hold"])
    side.api.delete(CONFIG_MAPS, "a", side.namespace)
    going = side.get(CONFIG_MAPS, "a")["metadata"]
    assert going["deletionTimestamp"]
    side.api.delete(CONFIG_MAPS, "a", side.namespace)
    assert side.get(CONFIG_MAPS, "a")["metadata"]["deletionTimestamp"] == going["deletionTimestamp"]
    side.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}})
    assert side.names(CONFIG_MAPS) == set()


def test_a_pod_that_no_node_has_is_gone_at_once(side: Side) -> None:
    side.pod()
    side.api.delete(PODS, "p", side.namespace)
    assert side.names(PODS) == set()


def test_another_deletion_only_shortens_the_grace_period(side: Side) -> None:
    pod = side.pod(terminationGracePeriodSeconds=600)
    side.patch(PODS, "p", {"metadata": {"finalizers": ["example.com/hold"]}})
    bind(side, pod)

    def delete(grace_period_s: int | None = None) -> tuple[int, float]:
        side.api.delete(PODS, "p", side.namespace, grace_period_s=grace_period_s)
        going = side.get(PODS, "p")["metadata"]
        grace_s = going["deletionGracePeriodSeconds"]
        return grace_s, seconds(going["deletionTimestamp"]) - grace_s

    grace_s, asked_at_s = delete()
    assert grace_s == 600
    assert delete(900) == (600, asked_at_s)
    assert delete() == (600, asked_at_s)
    assert delete(60) == (60, asked_at_s)
    assert delete(61) == (60, asked_at_s)
    side.patch(PODS, "p", {"metadata": {"finalizers": None}})


# --- bindings, gates and evictions ----------------------------------------------------------------


def bind(side: Side, pod: dict, **more: Any) -> None:
    metadata = pod["metadata"]
    values = {"uid": metadata["uid"]} | more
    side.api.bind(side.namespace, metadata["name"], "node-x", **values)


def test_a_binding_sets_the_node_and_the_annotations_in_one_update(side: Side) -> None:
    pod, seen = side.pod(), []
    done = threading.Event()

    def take(_: Any, item: dict) -> None:
        notes = item["metadata"].get("annotations") or {}
        seen.append((item["spec"].get("nodeName"), notes.get("example.com/gpus")))
        if seen[-1][0]:
            done.set()

    stop = side.watch(PODS, take)
    bind(side, pod, resource_version=version(pod), annotations={"example.com/gpus": "a"})
    assert done.wait(60)
    stop()
    assert set(seen) == {(None, None), ("node-x", "a")}


def test_a_binding_says_when_the_pod_was_scheduled(side: Side) -> None:
    wanted = {"limits": {names.RESOURCE: "1"}}  # of others the time is not read
    pod = side.pod(containers=[{"name": "c", "image": "i", "resources": wanted}])
    bind(side, pod)
    said = pod_info(side.get(PODS, "p")).bound_at
    assert said >= pod["metadata"]["creationTimestamp"]


@pytest.mark.parametrize("wrong", ["uid", "resource_version"])
def test_a_binding_with_a_precondition_that_does_not_hold_is_a_conflict(
    side: Side, wrong: str
) -> None:
    pod = side.pod()
    side.patch(PODS, "p", {"metadata": {"labels": {"touched": "yes"}}})
    stale = {"uid": "00000000-0000-0000-0000-000000000000", "resource_version": version(pod)}
    with pytest.raises(errors.Conflict):
        bind(side, pod, **{wrong: stale[wrong]})
    assert "nodeName" not in side.get(PODS, "p")["spec"]


def test_a_pod_is_bound_once(side: Side) -> None:
    pod = side.pod()
    bind(side, pod)
    with pytest.raises(errors.Conflict):
        bind(side, pod)


def test_a_pod_with_a_gate_is_not_bound(side: Side) -> None:
    pod = side.pod(schedulingGates=[GATE])
    with pytest.raises(errors.Conflict, match=r"chedulingGates|scheduling gates"):
        bind(side, pod)


def test_a_pod_that_is_being_deleted_is_not_bound(side: Side) -> None:
    pod = side.pod()
    side.patch(PODS, "p", {"metadata": {"finalizers": ["example.com/hold"]}})
    side.api.delete(PODS, "p", side.namespace)
    with pytest.raises(errors.Conflict, match="deleted"):
        bind(side, pod)
    side.patch(PODS, "p", {"metadata": {"finalizers": None}})


def test_a_binding_of_a_pod_that_is_not_there_is_refused(side: Side) -> None:
    pod = side.pod()
    side.api.delete(PODS, "p", side.namespace)
    with pytest.raises(errors.NotFound):
        bind(side, pod)


def test_gates_are_removed_and_never_added(side: Side) -> None:
    side.pod(schedulingGates=[GATE, OTHER_GATE])
    side.patch(PODS, "p", {"spec": {"schedulingGates": [OTHER_GATE]}})
    with pytest.raises(errors.Invalid):
        side.patch(PODS, "p", {"spec": {"schedulingGates": [OTHER_GATE, GATE]}})
    side.patch(PODS, "p", {"spec": {"schedulingGates": None}})
    assert not side.get(PODS, "p")["spec"].get("schedulingGates")
    with pytest.raises(errors.Invalid):
        side.patch(PODS, "p", {"spec": {"schedulingGates": [GATE]}})


def test_a_write_of_a_pod_s_status_nominates_a_node_and_sets_annotations(side: Side) -> None:
    side.pod(schedulingGates=[GATE])
    body = {
        "metadata": {"annotations": {"example.com/note": "x"}},
        "spec": {"schedulingGates": None},
        "status": {"nominatedNodeName": "node-x"},
    }
    written = side.patch(PODS, "p", body, subresource="status")
    assert written == side.get(PODS, "p")
    assert written["status"]["nominatedNodeName"] == "node-x"
    assert written["metadata"]["annotations"] == {"example.com/note": "x"}
    assert written["spec"]["schedulingGates"] == [GATE], "of the spec it writes nothing"
    side.patch(PODS, "p", {"status": {"nominatedNodeName": None}}, subresource="status")
    assert "nominatedNodeName" not in side.get(PODS, "p")["status"]


def test_a_nomination_is_made_by_a_write_of_the_status_alone_and_ends_with_a_binding(
    side: Side,
) -> None:
    pod = side.pod()
    nomination = {"status": {"nominatedNodeName": "node-y"}}
    side.patch(PODS, "p", nomination, subresource="status")
    side.patch(PODS, "p", {"status": {"nominatedNodeName": "node-z"}})
    assert side.get(PODS, "p")["status"]["nominatedNodeName"] == "node-y"
    bind(side, pod)
    assert "nominatedNodeName" not in side.get(PODS, "p")["status"]


def test_a_node_is_set_by_a_binding_alone(side: Side) -> None:
    side.pod()
    with pytest.raises(errors.Invalid):
        side.patch(PODS, "p", {"spec": {"nodeName": "node-x"}})


def test_an_eviction_is_of_the_pod_that_was_meant(side: Side) -> None:
    pod = side.pod()
    with pytest.raises(errors.Conflict):
        side.api.evict(side.namespace, "p", uid="00000000-0000-0000-0000-000000000000")
    side.api.evict(side.namespace, "p", uid=pod["metadata"]["uid"])
    assert side.names(PODS) == set()


def test_annotations_have_a_limit_that_a_binding_passes(side: Side) -> None:
    full = {"example.com/notes": "x" * (names.ANNOTATION_BYTES - len("example.com/notes"))}
    pod = side.pod()
    side.patch(PODS, "p", {"metadata": {"annotations": full}})
    with pytest.raises(errors.Invalid):
        side.patch(PODS, "p", {"metadata": {"annotations": {"a/b": "c"}}})
    bind(side, pod, annotations={"example.com/gpus": "a"})
    assert side.get(PODS, "p")["metadata"]["annotations"]["example.com/gpus"] == "a"


# --- selectors, watches, suspension ---------------------------------------------------------------


def test_fields_select_by_node_scheduler_and_name(side: Side) -> None:
    bound = side.pod("bound")
    side.pod("free")
    side.pod("other", schedulerName="another")
    bind(side, bound)
    assert side.names(PODS, field_selector="spec.nodeName=") == {"free", "other"}
    assert side.names(PODS, field_selector="spec.nodeName=node-x") == {"bound"}
    assert side.names(PODS, field_selector="spec.schedulerName=none,spec.nodeName=") == {"free"}
    assert side.names(PODS, field_selector="metadata.name=other") == {"other"}


def test_labels_select_by_equality(side: Side) -> None:
    for name, labels in (("a", {"k": "1", "z": "1"}), ("b", {"k": "2"}), ("c", {})):
        side.config(name, labels=labels)
    assert side.names(CONFIG_MAPS, label_selector="k=1") == {"a"}
    assert side.names(CONFIG_MAPS, label_selector="k=1,z=1") == {"a"}
    assert side.names(CONFIG_MAPS, label_selector="k=2,z=1") == set()
    assert side.names(CONFIG_MAPS, label_selector="k") == {"a", "b"}


def test_a_watch_tells_each_change_in_order_and_nothing_of_writes_without_one(side: Side) -> None:
    seen: list[tuple[str, str]] = []
    ended = threading.Event()
    side.config("before")

    def take(kind: Any, item: dict) -> None:
        if item["metadata"]["name"] != "kube-root-ca.crt":
            seen.append((str(kind.value), item["metadata"]["name"]))
        if kind == "DELETED":
            ended.set()

    stop = side.watch(CONFIG_MAPS, take)
    side.config("a")
    side.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}})
    side.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}})
    side.api.delete(CONFIG_MAPS, "a", side.namespace)
    assert ended.wait(60)
    stop()
    assert seen == [("ADDED", "before"), ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_what_is_handed_out_is_a_copy(side: Side) -> None:
    side.config()
    side.get(CONFIG_MAPS, "a")["data"]["x"] = "spoilt"
    assert side.get(CONFIG_MAPS, "a")["data"] == {"x": "1"}


def test_a_job_is_suspended_by_a_patch_that_names_its_uid(side: Side) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    body = {"metadata": {"name": "j"}, "spec": {"suspend": False, "template": template}}
    made = side.api.create(JOBS, body, side.namespace)
    wrong = {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}, "spec": {"suspend": True}}
    with pytest.raises(errors.Replaced):
        side.patch(JOBS, "j", wrong)
    side.patch(JOBS, "j", {"metadata": {"uid": made["metadata"]["uid"]}, "spec": {"suspend": True}})
    assert side.get(JOBS, "j")["spec"]["suspend"] is True


# --- what is refused ------------------------------------------------------------------------------

FEATURES = {
    "flops": 1.0, "parameters": 1, "parameterBytes": 4, "activationBytes": 4,
    "largestTensorBytes": 4, "tensorSkew": 0.5, "nodes": 1, "depth": 1, "opCounts": {"Add": 1},
    "opset": 17,
}  # fmt: skip
PROFILE = {"featureHash": "h", "fileSha256": "s", "fileBytes": 1}
NODE_STATUS: dict[str, Any] = {"observedAt": "2026-01-02T03:04:05Z"}
GPU = {"uuid": "GPU-1", "index": 0, "model": "NVIDIA A100", "memoryBytes": 1 << 36}


def gpu_node(side: Side, status: dict) -> dict:
    """Write a status as an agent does: the object first, then its status."""
    name = f"node-{side.namespace}"
    with contextlib.suppress(errors.AlreadyExists):
        side.api.create(GPU_NODES, {"metadata": {"name": name}})
    body = {"metadata": {"name": name}, "status": NODE_STATUS | status}
    body["metadata"]["resourceVersion"] = version(side.api.get(GPU_NODES, name))
    return side.api.replace(GPU_NODES, body, subresource="status")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_know_is_refused(side: Side, number: float) -> None:
    for field in ("iterationsPerSecond", "memoryBytes"):
        with pytest.raises(errors.Invalid):
            gpu_node(side, {"gpus": [GPU | {"pods": [{"uid": "u", field: number}]}]})
    with pytest.raises(errors.Invalid):
        side.config(annotations={"a/b": number})


@pytest.mark.parametrize(
    ("status", "accepted"),
    [
        ({"gpus": [GPU]}, True),
        ({"gpus": [GPU | {"powerWatts": 5e-324}]}, True),
        ({"gpus": [GPU | {"index": 1.0}]}, True),
        ({"gpus": [GPU | {"index": 1.5}]}, False),
        ({"gpus": [GPU | {"index": -1}]}, False),
        ({"gpus": [GPU | {"index": True}]}, False),
        ({"gpus": [GPU | {"memoryBytes": (1 << 40) + 1}]}, False),
        ({"gpus": [GPU | {"memoryBytes": 1 << 70}]}, False),
        ({"gpus": [GPU | {"memoryBytes": "1"}]}, False),
        ({"gpus": [GPU | {"uuid": "GPU-1,GPU-2"}]}, False),
        ({"gpus": [GPU | {"uuid": "GPU-1\n"}]}, False),
        ({"gpus": [GPU | {"uuid": "x" * 97}]}, False),
        ({"gpus": [GPU | {"model": "\x1b[31m"}]}, False),
        ({"gpus": [GPU | {"model": "ü" * 128}]}, True),
        ({"gpus": [GPU | {"model": "x" * 129}]}, False),
        ({"gpus": [GPU | {"health": "Excellent"}]}, False),
        ({"gpus": [GPU | {"health": None}]}, True),
        ({"gpus": [GPU | {"model": None}]}, False),
        ({"gpus": [{"uuid": "GPU-1"}]}, False),
        ({"gpus": [GPU | {"uuid": f"GPU-{i}"} for i in range(64)]}, True),
        ({"gpus": [GPU | {"uuid": f"GPU-{i}"} for i in range(65)]}, False),
        ({"gpus": {}}, False),
        ({"observedAt": "2026-01-02 03:04:05"}, False),
        ({"observedAt": "2026-13-02T03:04:05Z"}, False),
        ({"observedAt": "2026-01-02T03:04:05.123456+01:00"}, True),
        ({"observedAt": "9999-12-31T23:59:59Z"}, True),
    ],
)
def test_a_status_is_held_against_the_schema(side: Side, status: dict, accepted: bool) -> None:
    if accepted:
        gpu_node(side, status)
        return
    with pytest.raises(errors.Invalid):
        gpu_node(side, status)


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("a.b-c", True), ("A", False), ("a_b", False), ("a/b", False), ("-a", False),
        ("a..b", False),
        ("x" * 253, True), ("x" * 254, False), ("é", False), ("a\n", False),
    ],
)  # fmt: skip
def test_names_of_objects_are_those_of_domains(side: Side, name: str, accepted: bool) -> None:
    for make in (side.config, side.pod):
        if accepted:
            make(name)
        else:
            with pytest.raises(errors.Invalid):
                make(name)


@pytest.mark.parametrize(
    ("kind", "key", "value", "accepted"),
    [
        ("labels", "k", "", True),
        ("labels", "example.com/K_1", "V.1", True),
        ("labels", "k", "x" * 63, True),
        ("labels", "k", "x" * 64, False),
        ("labels", "k", "a b", False),
        ("labels", "k", "-a", False),
        ("labels", "k", "a\n", False),
        ("labels", "x" * 64, "a", False),
        ("labels", "a/b/c", "a", False),
        ("labels", "A.com/b", "a", False),
        ("labels", "", "a", False),
        ("annotations", "k", "any text\n", True),
        ("annotations", "a/b/c", "a", False),
        ("annotations", "é", "a", False),
        ("annotations", "x" * 64, "a", False),
    ],
)
def test_labels_and_keys_of_annotations_are_qualified_names(
    side: Side, kind: str, key: str, value: str, accepted: bool
) -> None:
    if accepted:
        side.config(**{kind: {key: value}})
        side.patch(CONFIG_MAPS, "a", {"metadata": {kind: {key: value}}})
        return
    with pytest.raises(errors.Invalid):
        side.config(**{kind: {key: value}})
    side.config()
    with pytest.raises(errors.Invalid):
        side.patch(CONFIG_MAPS, "a", {"metadata": {kind: {key: value}}})


def test_an_object_has_a_largest_size(side: Side) -> None:
    with pytest.raises(errors.Invalid):
        side.api.create(
            CONFIG_MAPS,
            {"metadata": {"name": "a"}, "data": {"x": "x" * ((1 << 20) + 1)}},
            side.namespace,
        )
    for name, kinds, accepted in (("large", 2000, True), ("larger", 4000, False)):
        counts = {f"{'x' * 400}{kind}": 1 for kind in range(kinds)}
        spec = PROFILE | {"features": FEATURES | {"opCounts": counts}}
        body = {"metadata": {"name": name}, "spec": spec}
        if accepted:
            side.api.create(MODEL_PROFILES, body, side.namespace)
            continue
        # Refused for good: a client does not write the same object again.
        with pytest.raises(errors.Invalid, match="request is too large") as refused:
            side.api.create(MODEL_PROFILES, body, side.namespace)
        assert refused.value.status == 500


# --- the page -----------------------------------------------------------------------------------


def page(before: str) -> str:
    """Return docs/evidence/kubernetes.md: what is written by hand, and the table at its end."""
    tests = [name for name in globals() if name.startswith("test_") and name != "test_the_page"]
    lines = [
        "The fast tests and the demo run on `tandem.kube.memory.MemoryCluster`. Each behaviour in "
        "the table is one test",
        "of `tests/kube/test_kube_contract.py`, which runs on both, and writes the table.",
        "",
        "| behaviour | in memory | real |",
        "|---|---|---|",
    ]
    for name in tests:
        said = name.removeprefix("test_").replace("_", " ")
        lines.append(f"| {said[0].upper()}{said[1:]} | yes | yes |")
    lines += [f"| {said} | no: {why} | yes |" for said, why in DIFFERENCES.items()]
    by_hand, head, _ = before.partition(HEAD)
    assert head, "the page has no such section"
    return by_hand + HEAD + "\n" + "\n".join(lines) + "\n"


def test_the_page() -> None:
    text = PAGE.read_text()
    assert text == page(text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
