"""Pods without GPUs of ours: any tenant makes them, and their events cost almost nothing."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from extender_builders import NOW, gpu, gpu_node, node, pod
from pydantic_core import from_json
from repeated_faults import record, times

from controlplane.usage import resident_mib
from scheduler_extender.cluster import pods
from scheduler_extender.cluster.feed import Feed
from scheduler_extender.cluster.objects import GRAVES_S, Objects
from scheduler_extender.cluster.parsing import parse_pod
from scheduler_extender.cluster.state import ClusterState
from tandem.kube.reflector import EventType
from tandem.progress import says_out_of_memory

#: The kubelet keeps so much of a termination message, and 12 KiB of all of a pod.
ATTACK = ("torch." * 700)[:4096]
Object = dict[str, Any]


def ended(message: str, at: str = "2026-01-01T00:00:00Z") -> Object:
    return {"terminated": {"exitCode": 1, "message": message, "finishedAt": at}}


def with_last_words(obj: Object, message: str, at: str = "2026-01-01T00:00:00Z") -> Object:
    obj["status"]["containerStatuses"] = [
        {"name": f"c{i}", "state": ended(message, at), "lastState": ended(message, at)}
        for i in range(3)
    ]
    return obj


def busy(name: str, version: int, on: str = "n0", **more: Any) -> Object:
    """Return a CPU pod with everything whose reading could take long."""
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    made = pod(
        name, 0, node_name=on, version=version, affinity={"nodeAffinity": required},
        annotations={f"note-{i}": "x" * 1000 for i in range(20)}, **more,
    )  # fmt: skip
    made["metadata"]["labels"] = {"version": str(version)}
    return with_last_words(made, ATTACK)


class Calls:
    """Counts the calls of what takes time, by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.count = dict.fromkeys(names, 0)
        self.longest = 0
        for name in names:
            monkeypatch.setattr(pods, name, self._counting(name, getattr(pods, name)))

    def _counting(self, name: str, function: Any) -> Any:
        def counted(*args: Any) -> Any:
            self.count[name] += 1
            if name == "says_out_of_memory":
                self.longest = max(self.longest, len(args[0]))
            return function(*args)

        return counted


COSTLY = (
    "says_out_of_memory", "node_requirements", "_fingerprint", "_foreign_bytes", "_kept",
    "_controller", "_first_time",
)  # fmt: skip


class Mirror:
    """What a reflector of pods does with its events, into a state."""

    def __init__(self) -> None:
        self.state = ClusterState(now_s=NOW)
        self.feed = Feed(self.state, kinds=("pods",))
        self._trim = self.feed.trim("pods")
        self._kept: dict[tuple[str, str], Object] = {}
        self.events = 0

    def send(self, obj: Object) -> None:
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        known = self._kept.get(key)
        kept = self._trim(obj, known)
        if kept is known:
            return
        self._kept[key] = kept
        self.events += 1
        self.feed.take("pods", EventType.MODIFIED, kept)


def on_a_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@on_a_loop
async def test_label_patches_of_a_pod_without_gpus_stop_at_the_door(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch, *COSTLY)
    mirror = Mirror()
    for version in range(1, 201):
        mirror.send(busy("cpu", version))
    await asyncio.sleep(0.05)
    assert calls.count == dict.fromkeys(COSTLY, 0)
    assert mirror.events == 1
    assert mirror.state.nodes.uses() == {"uid-ml-cpu": ("n0", 1.0, 0)}
    mirror.send(busy("cpu", 201, phase="Succeeded"))
    await asyncio.sleep(0.05)
    assert mirror.events == 2
    assert mirror.state.nodes.uses() == {}
    mirror.state.check()


def test_a_pod_that_takes_nothing_of_a_node_is_not_read_further() -> None:
    waiting = parse_pod(busy("cpu", 1, on=""))
    assert (waiting.pod.cpu, waiting.pod.takes) == (0.0, None)
    again = parse_pod(busy("cpu", 2, on=""), waiting)
    assert again is waiting
    bound = parse_pod(busy("cpu", 3), again)
    assert bound.pod.takes == ("n0", 1.0, 0)
    other = busy("cpu", 4, uid="another")
    assert parse_pod(other, bound).uid == "another"


def test_the_last_words_of_a_container_are_read_once_and_from_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch, "says_out_of_memory")
    long = "x" * 100_000 + " CUDA out of memory. "
    found = None
    for version in range(1, 10):
        found = parse_pod(with_last_words(pod("gpu", version=version), long), found)
    assert found is not None
    assert len(found.pod.out_of_memory) == 6
    assert calls.count["says_out_of_memory"] == 6, "each end of each container, once"
    assert calls.longest == 4096
    later = with_last_words(pod("gpu", version=10), "done", at="2026-01-01T01:00:00Z")
    found = parse_pod(later, found)
    assert found.pod.out_of_memory == ()
    assert calls.count["says_out_of_memory"] == 12


@pytest.mark.parametrize(
    "unit",
    ["torch.", "cupy.x.", "ResourceExhaustedError: ", "OutOfMemoryError", ".OutOfMemoryError",
     "torch.OutOfMemory", "failed to allocate memory", "RESOURCE_EXHAUSTED"],
)  # fmt: skip
def test_the_words_are_searched_once(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the parts that take time with the text is called once for each of its pieces."""
    text = (unit * 4096)[:4096]
    pieces = 0
    from tandem import progress

    def is_error(name: str) -> bool:
        nonlocal pieces
        pieces += len(name)
        return False

    monkeypatch.setattr(progress, "_is_error", is_error)
    monkeypatch.setattr(progress, "_is_of_tensorflow", is_error)
    assert not says_out_of_memory(text)
    assert pieces <= 2 * len(text)


def test_pods_that_name_unknown_nodes_take_no_slot() -> None:
    state = ClusterState(now_s=NOW)
    state.upsert("nodes", node("n0", cpu="4"))
    state.upsert("gpunodes", gpu_node("n0", gpu("g0")))
    for index in range(500):
        state.upsert("pods", busy(f"p{index}", 1, on=f"made-up-{index % 250}"))
    assert len(state.nodes._records) == 1
    for index in range(499):
        state.delete("pods", busy(f"p{index}", 1, on=f"made-up-{index % 250}"))
    state.upsert("nodes", node("made-up-249", cpu="4"))
    state.upsert("gpunodes", gpu_node("made-up-249", gpu("g1")))
    asks = parse_pod(pod("new", cpu="3500m")).pod
    assert state.eligible_nodes(asks).tolist() == [False, True], "it runs there already"
    state.delete("pods", busy("p499", 1, on="made-up-249"))
    assert state.eligible_nodes(asks).tolist() == [True, True]
    assert not state.nodes._elsewhere
    state.check()


def test_deletions_of_pods_without_gpus_displace_no_memory_of_others() -> None:
    objects = Objects()
    objects.tick(NOW)
    objects.put("pods", parse_pod(pod("gpu", version=1)))
    objects.forget("pods", ("ml", "gpu"), "uid-ml-gpu")
    for index in range(20_001):
        objects.put("pods", parse_pod(pod("cpu", 0, uid=f"u{index}", version=index + 2)))
        objects.forget("pods", ("ml", "cpu"), f"u{index}")
    assert objects.is_gone("uid-ml-gpu")
    assert objects.is_gone("u20000")
    assert not objects.is_gone("u0")
    objects.tick(NOW + GRAVES_S + 1)
    assert not objects.is_gone("u20000")


def as_the_api_server_sends_it() -> str:
    """Return an event about a CPU pod whose last words hold the attack; three parts are blank."""
    made = busy("NAME", 1, on="NODE")
    made["metadata"] |= {"uid": "uid-NAME", "resourceVersion": "VERSION", "annotations": {}}
    made["metadata"]["managedFields"] = [
        {"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:{i}": {} for i in range(40)}}
    ]
    for container in made["status"]["containerStatuses"]:
        del container["lastState"]  # the kubelet keeps 12 KiB of all messages together
    return json.dumps({"type": "MODIFIED", "object": made})


@pytest.mark.timeout(14_400)
@on_a_loop
async def test_a_million_pods_without_gpus() -> None:
    """Every pod of the cluster appears, is relabelled once and stays."""
    count, nodes, at_once = times(500, 1_000_000), 5_000, 500
    mirror, template = Mirror(), as_the_api_server_sends_it()
    before_mib = resident_mib(os.getpid())
    decoding_s = reading_s = loop_s = 0.0
    for version, chunk in itertools.product((1, 2), range(0, count, at_once)):
        on = f"node-{chunk // at_once % nodes}"
        sent = [
            template.replace("NAME", f"web-{index:07}")
            .replace("NODE", on)
            .replace("VERSION", str(version))
            .encode()
            for index in range(chunk, chunk + at_once)
        ]
        began = time.process_time()
        events = [from_json(line)["object"] for line in sent]
        decoded = time.process_time()
        for each in events:
            mirror.send(each)
        read = time.process_time()
        await asyncio.sleep(0)
        mirror.feed._drain()
        loop_s += time.process_time() - read
        decoding_s += decoded - began
        reading_s += read - decoded
    while mirror.feed.pending:
        mirror.feed._drain()
    assert mirror.events == count, "a new label is no news"
    assert len(mirror.state.nodes.uses()) == count
    record(
        "foreign",
        "pods without GPUs, each relabelled once; three termination messages hold the attack",
        count,
        event_kib=round(len(template) / 1024, 1),
        decoding_us_per_event=round(1e6 * decoding_s / (2 * count), 1),
        reading_us_per_event=round(1e6 * reading_s / (2 * count), 1),
        event_loop_us_per_pod=round(1e6 * loop_s / count, 1),
        kept_bytes_per_pod=round((resident_mib(os.getpid()) - before_mib) * 2**20 / count),
    )
