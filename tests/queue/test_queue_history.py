"""What finished jobs teach: learned once, kept apart from them, bounded."""

import asyncio
import json

from queue_builders import gang

from scheduler_extender.cluster.records import GpuJobRecord, parse_gpu_job
from scheduler_extender.learning.history import NAME, Learned
from scheduler_extender.queue.writes import Writer
from tandem.contracts.resources import Phase
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import CONFIG_MAPS


def finished(uid: str, service: float, phase: Phase = Phase.COMPLETED) -> GpuJobRecord:
    known = gang(phase=phase, attained_gpu_seconds=service).record
    return parse_gpu_job(
        {
            "metadata": {"namespace": "default", "name": uid, "uid": uid, "resourceVersion": "1"},
            "spec": known.spec.wire(),
            "status": known.status.wire(),
        }
    )


def save(learned: Learned, api: MemoryCluster, now_s: float) -> None:
    writer = Writer(api, None, lambda *_: None, lambda: now_s)  # type: ignore[arg-type] # no picture is touched
    asyncio.run(learned.save(writer, now_s))


def test_each_end_is_learned_once_and_a_failure_teaches_nothing() -> None:
    learned = Learned(None, 10)
    for record in (finished("a", 5), finished("a", 5), finished("b", 7, Phase.FAILED)):
        learned.take(record)
    assert learned.history().service_gpu_s.tolist() == [5]


def test_what_was_learned_outlives_the_process_and_two_leaders_add_up() -> None:
    api = MemoryCluster()
    first, second = Learned("tandem-system", 10), Learned("tandem-system", 10)
    first.take(finished("a", 5))
    save(first, api, 100)
    second.take(finished("a", 5))
    second.take(finished("b", 7))
    save(second, api, 200)
    third = Learned("tandem-system", 10)
    save(third, api, 300)
    assert sorted(third.history().service_gpu_s.tolist()) == [5, 7]
    stored = api.get(CONFIG_MAPS, NAME, "tandem-system")["data"]
    assert json.loads(stored["serviceGpuSeconds"]) == {"a": 5, "b": 7}


def test_the_oldest_are_forgotten() -> None:
    learned = Learned(None, 2)
    for uid, service in (("a", 1), ("b", 2), ("c", 3)):
        learned.take(finished(uid, service))
    assert learned.history().service_gpu_s.tolist() == [2, 3]
