"""When reports go out, and what becomes of them while the other side is away."""

import itertools
import random
import threading
import time

import pytest

from node_agent.publish import Change, Publisher, Rhythm, WriteError, compare, gpu_node
from tandem.contracts.resources import GPU, EvictionRequest, GPUNodeStatus, Health, PodUse

GIB = 1 << 30
STAMP = "2026-01-02T03:04:05Z"
INTERVAL_S = 10.0


def status(*, health=Health.HEALTHY, used=10 * GIB, util=50.0, pods=(), requests=()):
    gpu = GPU(
        uuid="GPU-a",
        index=0,
        model="A100",
        memory_bytes=80 * GIB,
        memory_used_bytes=used,
        utilisation_percent=util,
        health=health,
        pods=list(pods),
    )
    return GPUNodeStatus(observed_at=STAMP, gpus=[gpu], eviction_requests=list(requests))


REQUEST = EvictionRequest(
    namespace="a", pod="p", uid="u", gpu="GPU-a", reason="r", requested_at=STAMP
)


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (status(), Change.NONE),
        (status(used=13 * GIB), Change.NONE),
        (status(used=14 * GIB), Change.NOTABLE),
        (status(used=None), Change.NOTABLE),
        (status(util=59), Change.NONE),
        (status(util=61), Change.NOTABLE),
        (status(pods=[PodUse(uid="u", memory_bytes=1)]), Change.NOTABLE),
        (status(health=Health.QUARANTINED), Change.URGENT),
        (status(requests=[REQUEST]), Change.URGENT),
        (GPUNodeStatus(observed_at=STAMP), Change.URGENT),
    ],
)
def test_how_much_changed(after, change):
    assert compare(status(), after) is change


def test_name_that_becomes_known_is_a_change():
    before, after = status(pods=[PodUse(uid="u")]), status(pods=[PodUse(uid="u", pod="p")])
    assert compare(before, after) is Change.NOTABLE


def sent(rhythm, course):
    """Return the times at which reports of `course` (time -> status) go out, asked each second."""
    return [now for now in range(300) if rhythm.is_due(now, course(now))]


def test_quiet_node_sends_heartbeats_only():
    times = sent(Rhythm(INTERVAL_S, random.Random(1)), lambda now: status())
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert times[0] == 0
    assert len(gaps) == 4
    assert all(54 <= gap <= 67 for gap in gaps)


def test_heartbeats_of_many_nodes_spread():
    first = {
        sent(Rhythm(INTERVAL_S, random.Random(seed)), lambda now: status())[1] for seed in range(40)
    }
    assert len(first) > 5


def test_restless_node_sends_every_ten_seconds():
    times = sent(
        Rhythm(INTERVAL_S, random.Random(1)), lambda now: status(used=(now % 8 + 1) * 9 * GIB)
    )
    assert min(b - a for a, b in itertools.pairwise(times)) >= 10
    assert len(times) > 20


def test_loss_of_a_gpu_is_reported_within_a_second_or_two():
    times = sent(
        Rhythm(INTERVAL_S, random.Random(1)),
        lambda now: status(health=Health.QUARANTINED if now >= 3 else Health.HEALTHY),
    )
    assert times[:2] == [0, 3]


@pytest.mark.parametrize("interval_s", [20.0, 60.0, 600.0])
def test_a_longer_interval_makes_no_report_stale_and_no_loss_late(interval_s):
    quiet = sent(Rhythm(interval_s, random.Random(1)), lambda now: status())
    assert max(b - a for a, b in itertools.pairwise(quiet)) <= 67
    restless = sent(
        Rhythm(interval_s, random.Random(1)), lambda now: status(used=(now % 8 + 1) * 9 * GIB)
    )
    gaps = [b - a for a, b in itertools.pairwise(restless)]
    assert min(interval_s, 54) <= min(gaps)
    assert max(gaps) <= 67
    lost = sent(
        Rhythm(interval_s, random.Random(1)),
        lambda now: status(health=Health.QUARANTINED if now >= 3 else Health.HEALTHY),
    )
    assert lost[:2] == [0, 3]


class Away:
    """A writer that fails until it is let through."""

    def __init__(self):
        self.there = threading.Event()
        self.written = []
        self.tried = threading.Event()

    def read(self, node):
        return None

    def write(self, node, gpu_node):
        self.tried.set()
        if not self.there.is_set():
            raise WriteError("away")
        self.written.append(gpu_node)


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_return_of_the_api_server_sees_one_write_of_the_newest_report(monkeypatch):
    monkeypatch.setattr("node_agent.publish.RETRY_MIN_S", 0.05)
    writer = Away()
    publisher = Publisher("n0", writer)
    publisher.start()
    for used in range(1, 30):
        publisher.submit(status(used=used * GIB))
        if used == 1:
            assert writer.tried.wait(60)
    wait_for(lambda: publisher.failed >= 2)
    writer.there.set()
    wait_for(lambda: writer.written)
    publisher.stop()
    assert writer.written == [gpu_node("n0", status(used=29 * GIB))]
    assert publisher.written == 1


@pytest.mark.parametrize("method", ["read", "write"])
def test_stop_does_not_wait_for_an_api_server_that_is_away(method):
    writer = Away()

    def away(*args):
        writer.tried.set()
        raise WriteError("away")

    setattr(writer, method, away)
    publisher = Publisher("n0", writer)
    publisher.start()
    publisher.submit(status())
    assert writer.tried.wait(60)
    publisher.stop(timeout_s=10)
    assert not publisher._thread.is_alive()
    assert not publisher.broken
    assert (publisher.known.is_set(), writer.written) == (method == "write", [])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("method", ["read", "write"])
def test_bug_in_a_writer_does_not_go_unseen(method):
    def fail(*args):
        raise ZeroDivisionError

    class Buggy:
        def read(self, node):
            return None

    setattr(Buggy, method, fail)

    publisher = Publisher("n0", Buggy())
    assert not publisher.broken
    publisher.start()
    publisher.submit(status())
    wait_for(lambda: publisher.broken)


def test_report_on_the_wire():
    node = gpu_node("n0", status())
    assert (node["apiVersion"], node["kind"]) == ("tandem.gpu/v1alpha1", "GPUNode")
    assert node["metadata"] == {"name": "n0"}
    assert "temperatureCelsius" not in node["status"]["gpus"][0], "absent, not null and not zero"
    assert GPUNodeStatus.model_validate(node["status"]) == status()
