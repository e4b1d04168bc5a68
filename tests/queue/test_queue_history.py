"""What finished jobs teach: learned once, kept apart from them, bounded."""

import asyncio
import json
from base64 import b64decode
from collections import Counter
from random import Random
from uuid import UUID

import pytest
from queue_builders import gang

from scheduler_extender.cluster.pair_slowdowns import PairSlowdowns, PlacementHistory
from scheduler_extender.cluster.parsing import parse_gpu_job
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.learning.history_store import HistoryStore
from scheduler_extender.learning.run_history import RunHistory
from scheduler_extender.quotas.usage import Usage
from tandem.contracts.names import HISTORY_CONFIG_MAP as NAME
from tandem.contracts.resources import Phase
from tandem.kube.api import ClusterApi
from tandem.kube.client import KubeClient
from tandem.kube.errors import Invalid, Unavailable
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import CONFIG_MAPS


def finished(
    uid: str,
    service: float,
    phase: Phase = Phase.COMPLETED,
    gpus: int = 1,
    namespace: str = "default",
) -> GpuJobRecord:
    known = gang(phase=phase, attained_gpu_seconds=service).record
    spec = known.spec.wire()
    spec["demand"] |= {"gangSize": gpus, "gpusPerPod": 1}
    return parse_gpu_job(
        {
            "metadata": {"namespace": namespace, "name": uid, "uid": uid, "resourceVersion": "1"},
            "spec": spec,
            "status": known.status.wire(),
        }
    )


def save(learned: HistoryStore, api: ClusterApi, now_s: float) -> None:
    writer = Writer(api, None, lambda *_: None, lambda: now_s)  # type: ignore[arg-type] # no picture is touched
    asyncio.run(learned.save(writer, now_s))


def test_each_end_is_learned_once_that_of_failed_and_killed_jobs_too() -> None:
    """[Tiresias] 3.2.2: the distribution is of the service that jobs receive, however they end."""
    learned = HistoryStore(None, 10)
    for record in (finished("a", 5), finished("a", 5), finished("b", 7, Phase.FAILED)):
        learned.take(record)
    learned.take(finished("never-ran", 0, Phase.FAILED))
    learned.take(finished("runs", 9, Phase.RUNNING))
    assert learned.history().service_gpu_s.tolist() == [5, 7]
    learned.take_killed(finished("killed", 9, Phase.SUSPENDED))
    learned.take_killed(finished("a", 5))  # its workload is deleted after its end
    assert learned.history().service_gpu_s.tolist() == [5, 7, 9]


def test_what_was_learned_outlives_the_process_and_two_leaders_add_up() -> None:
    api = MemoryCluster()
    first, second = HistoryStore("tandem-system", 10), HistoryStore("tandem-system", 10)
    first.take(finished("a", 5))
    save(first, api, 100)
    second.take(finished("a", 5))
    second.take(finished("b", 7))
    save(second, api, 200)
    third = HistoryStore("tandem-system", 10)
    save(third, api, 300)
    assert sorted(third.history().service_gpu_s.tolist()) == [5, 7]
    stored = api.get(CONFIG_MAPS, NAME, "tandem-system")["data"]
    assert json.loads(stored["serviceGpuSeconds"]) == {"a": 5, "b": 7}


def test_how_many_gpus_a_gang_had_is_learned_with_its_service() -> None:
    """So that an order can learn how long jobs run."""
    api = MemoryCluster()
    first = HistoryStore("tandem-system", 10)
    first.take(finished("a", 50))
    first.take(finished("b", 800, gpus=8))
    save(first, api, 100)
    again = HistoryStore("tandem-system", 10)
    save(again, api, 200)
    for learned in (first, again):
        runs = learned.history().runs(500.0)
        assert (runs.gpus.tolist(), runs.exposure_s.sum(axis=0).tolist()) == ([1, 8], [50, 100])
    # A version that knows services alone leaves what it does not know.
    assert json.loads(api.get(CONFIG_MAPS, NAME, "tandem-system")["data"]["gangGpus"]) == {"b": 8}


def test_the_oldest_are_forgotten() -> None:
    learned = HistoryStore(None, 2)
    for uid, service in (("a", 1), ("b", 2), ("c", 3)):
        learned.take(finished(uid, service))
    assert learned.history().service_gpu_s.tolist() == [2, 3]


# --- whose it is ------------------------------------------------------------------------------


def test_one_tenant_replaces_nothing_that_the_others_have_taught() -> None:
    learned = HistoryStore(None, 10)
    for number in range(4):
        learned.take(finished(f"honest-{number}", 9000, namespace="honest"))
    for number in range(1000):
        learned.take(finished(f"short-{number}", 1, namespace="mallory"))
    history = learned.history()
    assert sorted(history.service_gpu_s.tolist()) == [1.0] * 6 + [9000.0] * 4
    assert history.namespaces.count("honest") == 4
    # Once the others have as many, each has its even share.
    for number in range(10):
        learned.take(finished(f"more-{number}", 8000, namespace="honest"))
    assert learned.history().namespaces.count("honest") == 5


def test_what_an_earlier_version_stored_counts_as_that_of_one_namespace() -> None:
    api = MemoryCluster()
    metadata = {"name": NAME, "namespace": "tandem-system"}
    services = {f"old-{number}": 7.0 for number in range(8)}
    data = {"serviceGpuSeconds": json.dumps(services), "gangGpus": json.dumps({"old-0": 2})}
    api.create(CONFIG_MAPS, {"metadata": metadata, "data": data}, "tandem-system")
    learned = HistoryStore("tandem-system", 10)
    learned.take(finished("new", 5))
    save(learned, api, 100)
    assert sorted(learned.history().service_gpu_s.tolist()) == [5.0] + [7.0] * 8
    # A job whose GPUJob is still there gets its namespace, and the rest makes way first.
    learned.take(finished("old-0", 7))
    for number in range(5):
        learned.take(finished(f"newer-{number}", 5))
    save(learned, api, 200)
    assert Counter(learned.history().namespaces) == {"": 5, "default": 5}
    stored = api.get(CONFIG_MAPS, NAME, "tandem-system")["data"]
    assert set(json.loads(stored["namespaces"])) <= set(json.loads(stored["serviceGpuSeconds"]))
    again = HistoryStore("tandem-system", 10)
    save(again, api, 300)
    assert Counter(again.history().namespaces) == {"": 5, "default": 5}


def test_beyond_the_bound_of_all_only_the_largest_namespace_forgets() -> None:
    """Of pairs, of speeds of gangs, and of runs."""
    pairs, memory, placements = PairSlowdowns(), RunHistory(), PlacementHistory()
    pairs.merge([["a@1", "b@1", "small", 0.5, True, 0.0]])
    pairs.merge([[f"k{i}@1", "b@1", f"n{i // 64}", 0.5, True, 1 + i] for i in range(2000)])
    assert pairs.believed("a@1", "b@1", "small") == 0.5
    figures = {
        "runs": 3, "memory_base_bytes": 1, "memory_peak_bytes": 2, "peak_probability": 0.5,
        "utilisation_percent": 5.0, "solo_percent": 5.0, "solo_rate": 1.0, "spread": 0.1,
    }  # fmt: skip
    memory.merge([["small", "a@1", "T4", figures | {"at_s": 0.0}]])
    memory.merge([[f"n{i // 64}", f"k{i}", "T4", figures | {"at_s": 1 + i}] for i in range(1500)])
    assert memory.runs_of("small", "a@1", "T4") == 3
    placements.merge([["small", "a@1", "T4", 8, 0.9, 2.0, 1.0, 0.0]])
    placements.merge([[f"n{i // 16}", f"k{i}", "T4", 8, 0.9, 2.0, 1.0, 1 + i] for i in range(500)])
    assert any(row[0] == "small" for row in placements.stored())
    pairs.shed(1000)
    memory.shed(1000)
    placements.shed(300)
    assert pairs.believed("a@1", "b@1", "small") == 0.5
    assert memory.runs_of("small", "a@1", "T4") == 3
    assert any(row[0] == "small" for row in placements.stored())


# --- its size ---------------------------------------------------------------------------------


def at_all_bounds(jobs: int = 5000) -> tuple[HistoryStore, PairSlowdowns, RunHistory]:
    """All that may be kept: names as long as they may be, no two alike, figures of many digits."""
    random = Random(1)
    pairs, memory = PairSlowdowns(per_namespace=1000), RunHistory()
    placements = PlacementHistory()
    kept = {"pairs": pairs, "placements": placements, "runs": memory}
    learned = HistoryStore("tandem-system", jobs, kept)
    for _ in range(jobs):
        learned.take(finished(str(UUID(int=random.getrandbits(128))), 1e6 * random.random()))
    words, runs, gangs = [], [], []
    for number in range(2000):
        kinds = (f"{random.getrandbits(256):064x}@{random.randrange(4096)}" for _ in range(2))
        words.append([*kinds, f"{'n' * 59}{number // 64:04}", random.random(), True, number])
    for number in range(1500):
        figures = {
            "runs": 3, "memory_base_bytes": random.getrandbits(36),
            "memory_peak_bytes": random.getrandbits(37), "peak_probability": random.random(),
            "utilisation_percent": 100 * random.random(), "solo_percent": 100 * random.random(),
            "solo_rate": random.random(), "spread": random.random(), "at_s": 1.8e9 + number,
        }  # fmt: skip
        kind = f"image:{random.getrandbits(256):064x}"
        namespace = f"{'n' * 59}{number // 64:04}"
        runs.append([namespace, kind, "NVIDIA A100-SXM4-80GB MIG 7g.80gb", figures])
    for number in range(500):
        kind = f"image:{random.getrandbits(256):064x}"
        gang = [f"{'n' * 59}{number // 16:04}", kind, "NVIDIA A100-SXM4-80GB MIG 7g.80gb", 1024]
        gangs.append([*gang, *(random.random() for _ in range(3)), 1.8e9 + number])
    pairs.merge(words)
    memory.merge(runs)
    placements.merge(gangs)
    assert (len(pairs), len(placements.stored()), len(memory)) == (2000, 500, 1500)
    return learned, pairs, memory


def read_back(api: ClusterApi, jobs: int = 5000) -> tuple[HistoryStore, PairSlowdowns, RunHistory]:
    pairs, memory = PairSlowdowns(per_namespace=1000), RunHistory()
    learned = HistoryStore("tandem-system", jobs, {"pairs": pairs, "runs": memory})
    save(learned, api, 1e9)
    return learned, pairs, memory


class Limited(MemoryCluster):
    """Refuses ConfigMaps whose values take more than `most`, as the API server does."""

    def __init__(self, most: int = 1 << 20) -> None:
        super().__init__()
        self.most = most

    def create(self, resource, body, namespace=None):
        self._check(body)
        return super().create(resource, body, namespace)

    def replace(self, resource, body, namespace=None, *, subresource=""):
        self._check(body)
        return super().replace(resource, body, namespace, subresource=subresource)

    def _check(self, body) -> None:
        size = sum(len(v.encode()) for v in (body.get("data") or {}).values())
        size += sum(len(b64decode(v)) for v in (body.get("binaryData") or {}).values())
        if size > self.most:
            raise Invalid(422, f"data: Too long: must have at most {self.most} bytes")


@pytest.mark.long
def test_all_that_may_be_kept_fits_and_comes_back_whole() -> None:
    api = Limited()
    learned, pairs, memory = at_all_bounds()
    save(learned, api, 100)
    again, more_pairs, more_memory = read_back(api)
    assert sorted(again.history().service_gpu_s) == sorted(learned.history().service_gpu_s)
    assert sorted(more_pairs.stored()) == sorted(pairs.stored())
    assert sorted(more_memory.stored(), key=str) == sorted(memory.stored(), key=str)
    assert learned.failures == 0
    assert 0 < learned.stored_bytes < 900 * 1024
    # Nothing has changed, so nothing is written.
    version = api.get(CONFIG_MAPS, NAME, "tandem-system")["metadata"]["resourceVersion"]
    learned.read_again()
    save(learned, api, 200)
    assert api.get(CONFIG_MAPS, NAME, "tandem-system")["metadata"]["resourceVersion"] == version


@pytest.mark.long
def test_what_others_keep_in_it_stays_and_counts() -> None:
    api = Limited()
    quotas = {"quotaGpuSeconds": "x" * 400_000}
    metadata = {"name": NAME, "namespace": "tandem-system"}
    api.create(CONFIG_MAPS, {"metadata": metadata, "data": quotas}, "tandem-system")
    learned, pairs, _ = at_all_bounds()
    save(learned, api, 100)
    stored = api.get(CONFIG_MAPS, NAME, "tandem-system")
    assert stored["data"] == quotas
    assert set(stored["binaryData"]) == {
        "serviceGpuSeconds", "gangGpus", "namespaces", "pairs", "placements", "runs",
    }  # fmt: skip
    # What is worth least has gone: the oldest words and runs, the first services.
    assert 0 < len(pairs) <= 2000
    assert len(read_back(api)[1]) == len(pairs)


def test_quotas_and_history_leave_each_other_what_they_keep() -> None:
    api, usage = Limited(), Usage("tandem-system", 3600.0)
    learned, pairs, _ = at_all_bounds()
    save(learned, api, 100)
    writer = Writer(api, None, lambda *_: None, lambda: 200.0)  # type: ignore[arg-type] # no picture is touched
    for now_s in range(200, 300, 5):
        usage.advance(now_s, {"team": 2})
        asyncio.run(usage.save(writer, now_s))
    assert usage.used(300.0)["team"] > 0
    data = api.get(CONFIG_MAPS, NAME, "tandem-system")["data"]
    assert any("team" in text for text in data.values())
    assert len(read_back(api)[1]) == len(pairs)


@pytest.mark.slow
def test_a_write_that_is_refused_is_seen_and_tried_again_with_less() -> None:
    api = Limited(most=200_000)
    learned, _pairs, _ = at_all_bounds(jobs=500)
    at_s = 100.0
    for _ in range(8):
        try:
            save(learned, api, at_s)
            break
        except Invalid:
            at_s += 20
    assert learned.failures >= 1
    again, more_pairs, more_memory = read_back(api, jobs=500)
    assert len(again.history().service_gpu_s) > 0
    # The newest are there still.
    assert max(row[5] for row in more_pairs.stored()) == 1999
    assert max(row[3]["at_s"] for row in more_memory.stored()) == 1.8e9 + 1499


def test_a_write_that_fails_loses_nothing_that_comes_in_meanwhile() -> None:
    class Away(MemoryCluster):
        away = True

        def create(self, resource, body, namespace=None):
            if self.away:
                raise Unavailable(503, "away")
            return super().create(resource, body, namespace)

    api, learned = Away(), HistoryStore("tandem-system", 10)
    learned.take(finished("a", 5))
    with pytest.raises(Unavailable):
        save(learned, api, 100)
    learned.take(finished("b", 7))
    api.away = False
    save(learned, api, 200)
    assert sorted(read_back(api, 10)[0].history().service_gpu_s.tolist()) == [5, 7]
    assert learned.failures == 1


def test_a_history_that_cannot_be_read_is_begun_anew() -> None:
    api = MemoryCluster()
    metadata = {"name": NAME, "namespace": "tandem-system"}
    data = {"serviceGpuSeconds": "{", "pairs": "[]"}
    api.create(CONFIG_MAPS, {"metadata": metadata, "data": data}, "tandem-system")
    learned = HistoryStore("tandem-system", 10)
    learned.take(finished("a", 5))
    save(learned, api, 100)
    assert read_back(api, 10)[0].history().service_gpu_s.tolist() == [5]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("serviceGpuSeconds", "[1]"),
        ("serviceGpuSeconds", '{"u": "many"}'),
        ("serviceGpuSeconds", '{"u": NaN}'),
        ("gangGpus", '{"u": -1}'),
        ("namespaces", '{"u": ["x"]}'),
        ("pairs", '[["a", "b", "ns"]]'),
        ("pairs", '[["a", "b", "ns", 0.5, true, "late"]]'),
        ("pairs", '[[["a"], "b", "ns", 0.5, true, 1]]'),
        ("placements", "7"),
        ("placements", '[["ns", "k", "T4", 4, 0.2, "fast", null, 1]]'),
        ("runs", '[["ns", "k", "T4", {"runs": 1}]]'),
        ("runs", "[" * 100_000),
        ("quotaGpuSeconds", '{"soon": {"ns": 1}}'),
        ("quotaGpuSeconds", "{"),
    ],
)
def test_json_of_another_shape_is_begun_anew_and_ends_nothing(key: str, text: str) -> None:
    """Without that, every later save of the leader failed, and nothing was learned any more."""
    api = MemoryCluster()
    api.create(CONFIG_MAPS, {"metadata": {"name": NAME}, "data": {key: text}}, "tandem-system")
    extras = {"pairs": PairSlowdowns(), "placements": PlacementHistory(), "runs": RunHistory()}
    learned, usage = HistoryStore("tandem-system", 10, extras), Usage("tandem-system", 3600.0)
    learned.take(finished("a", 5))
    writer = Writer(api, None, lambda *_: None, lambda: 0)  # type: ignore[arg-type] # as above
    for now_s in (100, 200, 300):
        usage.advance(now_s, {"ns": 1})
        usage.advance(now_s + 10, {"ns": 1})
        asyncio.run(usage.save(writer, now_s))
        save(learned, api, now_s)
    data = api.get(CONFIG_MAPS, NAME, "tandem-system")["data"]
    assert json.loads(data["serviceGpuSeconds"]) == {"a": 5}
    assert next(iter(json.loads(data["quotaGpuSeconds"]).values()))["ns"] > 0
    assert all(json.loads(data[name]) == [] for name in extras)


@pytest.mark.controlplane
def test_all_that_may_be_kept_fits_a_real_config_map(control_plane, namespace) -> None:
    api = KubeClient.load(control_plane.kubeconfig())
    learned, pairs, memory = at_all_bounds()
    learned._namespace = namespace
    save(learned, api, 100)
    more_pairs, more_memory = PairSlowdowns(per_namespace=1000), RunHistory()
    again = HistoryStore(namespace, 5000, {"pairs": more_pairs, "runs": more_memory})
    save(again, api, 200)
    assert len(again.history().service_gpu_s) == 5000
    assert sorted(more_pairs.stored()) == sorted(pairs.stored())
    assert sorted(more_memory.stored(), key=str) == sorted(memory.stored(), key=str)
    api.close()
