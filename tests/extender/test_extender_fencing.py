"""A new leader fences off the old one, whatever single objects the API server refuses to change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from extender_builders import gpu_job, pod

from scheduler_extender.cluster.records import Record
from scheduler_extender.leader import Fence
from tandem.contracts import names
from tandem.kube.errors import Conflict, Forbidden, Invalid, KubeError, from_status, unreachable
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, PODS

FULL = {"example.com/notes": "x" * (names.ANNOTATION_BYTES - 20)}


class Refusing(MemoryCluster):
    """An API server that refuses some writes: each is asked of `refuses` with its verb and body."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: Callable[[str, str, object], KubeError | None] = lambda *_: None

    def patch(self, resource, name, body, namespace=None, **more):
        if error := self.refuses("patch", name, body):
            raise error
        return super().patch(resource, name, body, namespace, **more)

    def evict(self, namespace, pod, **more):
        if error := self.refuses("evict", pod, None):
            raise error
        super().evict(namespace, pod, **more)


class Takeover:
    """Pods that a Binding of the old leader could still reach, and a new leader's fence."""

    def __init__(self) -> None:
        self.api = Refusing()
        self.taken: list[Record] = []
        self.said: list[tuple[str, str, str]] = []
        self.fence = Fence(
            self.api,
            names.SCHEDULER_NAME,
            lambda _kind, record: self.taken.append(record),
            self.tell,
        )

    def tell(self, regarding: dict, reason: str, note: str, kind: str) -> None:
        assert (regarding["apiVersion"], regarding["kind"], kind) == ("v1", "Pod", "Warning")
        self.said.append((regarding["metadata"]["name"], reason, note))

    def create(self, name: str, gpus: int = 1, **more) -> Callable[[], None]:
        """Create an ungated pod; return the Binding that the old leader sends too late."""
        made = pod(name, gpus, schedulerName=names.SCHEDULER_NAME, **more)
        metadata = self.api.create(PODS, made, "ml")["metadata"]
        return lambda: self.api.bind(
            "ml", name, "n0", uid=metadata["uid"], resource_version=metadata["resourceVersion"]
        )

    def take_over(self, epoch: str = "term.1") -> None:
        asyncio.run(self.fence.raise_for(epoch))

    def pods(self) -> list[dict]:
        return self.api.list(PODS)

    def names(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.pods()}


def test_a_pod_without_room_for_the_epoch_blocks_no_takeover_and_no_late_binding_reaches_it() -> (
    None
):
    takeover = Takeover()
    late = [takeover.create("full", annotations=FULL, memory=None), takeover.create("plain")]
    takeover.take_over()
    for binding in late:
        with pytest.raises(Conflict):
            binding()
    assert takeover.names() == {"full", "plain"}
    annotations = takeover.api.get(PODS, "plain", "ml")["metadata"]["annotations"]
    assert annotations[names.EPOCH] == "term.1"
    # Each takeover changes it anew.
    again = takeover.api.get(PODS, "full", "ml")["metadata"]["resourceVersion"]
    takeover.take_over("term.2")
    assert takeover.api.get(PODS, "full", "ml")["metadata"]["resourceVersion"] != again
    assert takeover.fence.open == {}


def test_only_pods_that_request_gpus_and_could_be_bound_are_stamped() -> None:
    takeover = Takeover()
    takeover.create("web", gpus=0, annotations=FULL, memory=None)
    takeover.create("gated", schedulingGates=[{"name": names.SCHEDULING_GATE}])
    takeover.create("bound", node_name="n0")
    before = {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in takeover.pods()}
    takeover.take_over()
    after = {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in takeover.pods()}
    assert before == after


def test_a_pod_that_took_the_name_of_a_listed_one_is_not_stamped() -> None:
    takeover = Takeover()
    takeover.create("p")
    asked: list[str] = []

    def replaced(verb: str, name: str, _: object) -> None:
        """Replace the pod when the fence is about to write the one that it has listed."""
        asked.append(verb)
        if len(asked) == 1:
            takeover.api.delete(PODS, name, "ml")
            takeover.create(name)

    takeover.api.refuses = replaced
    takeover.take_over()
    (heir,) = takeover.pods()
    assert names.EPOCH not in heir["metadata"].get("annotations", {})
    assert names.EPOCH not in heir["metadata"].get("labels", {})
    assert asked == ["patch"]
    assert takeover.fence.open == {}


@pytest.mark.parametrize(
    "error", [Invalid(422, "no"), Forbidden(403, "no"), KubeError(413, "too large")]
)
def test_a_pod_that_takes_no_change_at_all_is_evicted_and_its_event_says_why(
    error: KubeError,
) -> None:
    takeover = Takeover()
    takeover.api.refuses = lambda verb, name, _: (
        error if (verb, name) == ("patch", "rigid") else None
    )
    late = takeover.create("rigid")
    takeover.create("plain")
    takeover.take_over()
    with pytest.raises(KubeError):
        late()
    assert takeover.names() == {"plain"}
    ((name, reason, note),) = takeover.said
    assert (name, reason) == ("rigid", "NotFenced")
    assert str(error) in note


def test_a_pod_that_can_be_neither_changed_nor_evicted_is_not_bound_and_blocks_no_other() -> None:
    takeover = Takeover()
    takeover.api.refuses = lambda _, name, __: Forbidden(403, "no") if name == "rigid" else None
    takeover.create("rigid")
    late = takeover.create("plain")
    takeover.take_over()
    with pytest.raises(Conflict):
        late()
    uid = takeover.api.get(PODS, "rigid", "ml")["metadata"]["uid"]
    assert list(takeover.fence.open) == [uid]
    assert takeover.said[0][:2] == ("rigid", "NotFenced")
    takeover.api.refuses = lambda *_: None
    takeover.take_over("term.2")
    assert takeover.fence.open == {}


def test_an_api_server_that_is_away_is_waited_for_and_no_pod_is_evicted() -> None:
    takeover = Takeover()
    takeover.create("p")
    takeover.api.refuses = lambda *_: unreachable("away", maybe_done=True)
    for _ in range(10):
        with pytest.raises(KubeError):
            takeover.take_over()
    takeover.api.refuses = lambda *_: None
    takeover.take_over()
    assert takeover.names() == {"p"}


def test_a_failing_webhook_for_one_namespace_is_waited_for_a_while_and_not_for_ever() -> None:
    takeover = Takeover()
    late = takeover.create("p")
    failing = from_status({"code": 500, "message": "failed calling webhook"})
    takeover.api.refuses = lambda verb, *_: failing if verb == "patch" else None
    attempts = 0
    while True:
        attempts += 1
        try:
            takeover.take_over()
            break
        except KubeError:
            assert attempts < 10
    assert attempts > 1
    with pytest.raises(KubeError):
        late()


def test_an_object_that_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    takeover = Takeover()
    monkeypatch.setattr("tandem.kube.memory.check", lambda *_: None)  # another definition
    broken = gpu_job("pod-p")
    broken["spec"] = {}
    takeover.api.create(GPU_JOBS, broken, "ml")
    takeover.create("p", gpus=1)
    takeover.take_over()
    assert {record.name for record in takeover.taken} == {"p"}


def test_quantities_of_gpus_are_read_as_the_api_server_accepts_them() -> None:
    takeover = Takeover()
    takeover.create("wide", gpus="1k")  # type: ignore[arg-type]
    takeover.take_over()
    assert takeover.taken[0].pod.gpus == 1000  # type: ignore[attr-defined]


def test_a_pod_of_another_scheduler_is_left_as_it_is() -> None:
    takeover = Takeover()
    made = pod("theirs", 1, schedulerName="default-scheduler")
    before = takeover.api.create(PODS, made, "ml")["metadata"]["resourceVersion"]
    takeover.take_over()
    assert takeover.api.get(PODS, "theirs", "ml")["metadata"]["resourceVersion"] == before
    assert takeover.taken == []


def test_a_pod_that_is_being_deleted_is_left_as_it_is() -> None:
    takeover = Takeover()
    takeover.create("going")
    gone = takeover.api.get(PODS, "going", "ml")
    gone["metadata"]["finalizers"] = ["example.com/keeps"]
    takeover.api.replace(PODS, gone, "ml")
    takeover.api.delete(PODS, "going", "ml")
    before = takeover.api.get(PODS, "going", "ml")["metadata"]
    assert "deletionTimestamp" in before
    takeover.take_over()
    after = takeover.api.get(PODS, "going", "ml")["metadata"]
    assert after["resourceVersion"] == before["resourceVersion"]


def test_pods_and_jobs_are_taken_in_as_they_are_after_the_takeover() -> None:
    takeover = Takeover()
    takeover.api.create(GPU_JOBS, gpu_job("pod-p"), "ml")
    takeover.create("p")
    takeover.take_over()
    latest = {record.name: record for record in takeover.taken}
    assert set(latest) == {"p", "pod-p"}
    stored = takeover.api.get(PODS, "p", "ml")["metadata"]
    assert latest["p"].resource_version == stored["resourceVersion"]


def test_each_takeover_has_a_stamp_of_its_own() -> None:
    takeover = Takeover()
    takeover.create("plain")
    takeover.create("full", annotations=FULL, memory=None)
    stamps = []
    for epoch in ("term.1", "term.2"):
        takeover.take_over(epoch)
        plain, full = (takeover.api.get(PODS, name, "ml")["metadata"] for name in ("plain", "full"))
        assert plain["annotations"][names.EPOCH] == epoch
        stamps.append(full["labels"][names.EPOCH])
    assert stamps[0] != stamps[1]


def test_the_patience_with_a_failing_webhook_begins_anew_with_each_takeover() -> None:
    takeover = Takeover()
    takeover.create("p")
    failing = from_status({"code": 500, "message": "failed calling webhook"})

    def attempts() -> int:
        takeover.api.refuses = lambda verb, *_: failing if verb == "patch" else None
        for number in range(1, 10):
            try:
                takeover.take_over()
            except KubeError:
                continue
            return number
        raise AssertionError("no end")

    first = attempts()
    takeover.create("p")
    assert attempts() == first


def test_a_pod_that_took_the_name_of_one_that_is_to_be_evicted_stays() -> None:
    takeover = Takeover()
    takeover.create("p")

    def replaced(verb: str, name: str, _: object) -> KubeError | None:
        if verb == "patch":
            return Forbidden(403, "no")
        takeover.api.delete(PODS, name, "ml")
        takeover.create(name)
        return None

    takeover.api.refuses = replaced
    takeover.take_over()
    assert takeover.names() == {"p"}
    assert takeover.fence.open == {}
