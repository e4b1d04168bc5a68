"""How the queue writes a status: with preconditions, once, and seen at once by ourselves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from queue_builders import gang, pod

from scheduler_extender.cluster import writes
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.records import Record
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.writes import Writer
from tandem.contracts.resources import GPUJobStatus, Phase
from tandem.kube.errors import Conflict
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS
from tandem.reasons.causes import Cause, Reason

NOW = 1_800_000_000.0


class Server:
    """Takes the replacements of statuses, or refuses them."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict, dict]] = []
        self.refuses: Exception | None = None

    def replace(self, resource: Any, body: dict, namespace: str, **how: Any) -> dict:
        if self.refuses:
            raise self.refuses
        self.sent.append((body, how))
        return {**body, "metadata": body["metadata"] | {"resourceVersion": "2"}}


class Picture:
    def __init__(self) -> None:
        self.taken: list[tuple[str, Record]] = []

    def apply(self, kind: str, record: Record) -> None:
        self.taken.append((kind, record))

    def held(self, kind: str, raw: Any) -> Record | None:
        return None


class Bench:
    def __init__(self) -> None:
        self.api, self.picture = Server(), Picture()
        self.writer = Writer(self.api, self.picture, lambda *_: None, lambda: NOW)  # type: ignore[arg-type]

    def write(self, of: Gang, **changes: Any) -> None:
        assert of.record is not None
        status = of.record.status.model_copy(update=changes)

        async def do() -> None:
            await self.writer.write_status(of, status)

        asyncio.run(do())

    @property
    def written(self) -> GPUJobStatus:
        return GPUJobStatus.model_validate(self.api.sent[-1][0]["status"])


def running(name: str = "p") -> Any:
    bound = replace(pod(name, gpus=2, gated=False), node_name="n0", phase="Running")
    return replace(bound, started_at=rfc3339(NOW - 100))


def test_a_status_is_written_to_the_version_that_was_read_and_to_the_status_alone() -> None:
    bench, group = Bench(), gang(pod("p"))
    bench.write(group, reason="Waiting")
    ((body, how),) = bench.api.sent
    assert how == {"subresource": "status"}
    assert body["metadata"] == {
        "name": "job-j", "namespace": "default", "uid": "u", "resourceVersion": "1",
    }  # fmt: skip
    assert body["spec"] == group.record.spec.wire()


def test_what_was_written_is_seen_at_once() -> None:
    bench = Bench()
    bench.write(gang(pod("p")), reason="Waiting")
    ((kind, record),) = bench.picture.taken
    assert (kind, record.resource_version) == ("gpujobs", "2")
    assert record.status.reason == "Waiting"


def test_the_answer_of_a_write_counts_before_the_watch_tells_of_it() -> None:
    state = ClusterState(now_s=NOW)
    writer = Writer(MemoryCluster(), state, lambda *_: None, lambda: NOW)
    record = gang(pod("p")).record
    assert record is not None
    body = {"metadata": {"name": record.name}, "spec": record.spec.wire()}
    created = writer.api.create(GPU_JOBS, body, record.namespace)
    writer.take(created)
    assert [(key, job.uid) for key, job in state.gpu_jobs().items()] == [
        (("default", "job-j"), created["metadata"]["uid"])
    ]


def test_a_status_that_says_the_same_is_not_written() -> None:
    bench = Bench()
    bench.write(gang(pod("p")))
    assert bench.api.sent == []
    assert bench.picture.taken == []


def test_what_others_have_said_is_as_long_as_an_api_server_takes() -> None:
    """A webhook that forbids to suspend an owner may say much."""
    bench, group, long = Bench(), gang(pod("p")), "x" * 5000
    bench.write(group, message=long, causes=[Cause(Reason.PREEMPTING, detail=long)])
    status = bench.api.sent[-1][0]["status"]
    assert len(status["message"]) == 2000
    assert [len(cause["detail"]) for cause in status["causes"]] == [2000]


def test_the_service_until_now_goes_with_each_write() -> None:
    bench = Bench()
    bench.write(gang(running(), phase=Phase.RUNNING), reason="Running")
    assert bench.written.attained_gpu_seconds == 200


def test_a_job_that_has_ended_gains_no_more_service() -> None:
    bench = Bench()
    ended = {"finished_at": rfc3339(NOW - 50), "attained_gpu_seconds": 100.0}
    bench.write(gang(running(), phase=Phase.COMPLETED, **ended), reason="Completed")
    assert bench.written.attained_gpu_seconds == 100


def test_the_service_of_many_pods_is_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "_LARGE", 1)
    bench = Bench()
    bench.write(gang(running("p"), running("q"), phase=Phase.RUNNING), reason="Running")
    assert bench.written.attained_gpu_seconds == 400
    bench.write(gang(pod("p"), pod("q")))
    assert len(bench.api.sent) == 1, "nothing has changed"


def test_a_pod_that_is_gone_is_forgotten_once_its_service_is_written() -> None:
    bench, group = Bench(), gang(running(), phase=Phase.RUNNING)
    group.remove("uid-p", NOW - 10)
    bench.api.refuses = Conflict(409, "changed")
    with pytest.raises(Conflict):
        bench.write(group, reason="PodsGone")
    assert set(group.gone) == {"uid-p"}
    bench.api.refuses = None
    bench.write(group, reason="PodsGone")
    assert group.gone == {}
    assert bench.written.attained_gpu_seconds == 180


def test_what_else_belongs_to_a_status_goes_with_it() -> None:
    bench = Bench()
    bench.writer.annotate = lambda _, status: status.model_copy(update={"message": "annotated"})
    bench.write(gang(pod("p")))
    assert bench.written.message == "annotated"


def test_a_gang_without_its_gpujob_has_no_status_to_write() -> None:
    bench = Bench()
    asyncio.run(bench.writer.write_status(Gang(("default", "j")), GPUJobStatus()))
    assert bench.api.sent == []
