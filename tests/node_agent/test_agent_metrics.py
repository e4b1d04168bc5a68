"""The series that Prometheus gets, and that the documentation names every one."""

import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from controlplane import binaries
from node_agent.config import AgentSettings
from node_agent.metrics import AgentCollector, ProcessFigures
from node_agent.monitor import Monitor
from node_agent.pods import PodInfo
from node_agent.progress import Pace
from node_agent.publish import Publisher
from node_agent.stub import StubGpu, StubProcess, StubXid

GIB = 1 << 30
STAMP = "2026-01-02T03:04:05Z"
DOC = (Path(__file__).parents[2] / "docs/node-agent.md").read_text()


class Pods(dict):
    def find(self, uid):
        return self.get(uid)

    def look_for(self, uids):
        pass


@pytest.fixture
def registry(driver, proc):
    """Two pods of one job and one pod of no job on a GPU that had an Xid."""
    driver.state.gpus = [StubGpu("GPU-a", gpm=0.5, ecc=3), StubGpu("GPU-b", ecc=0)]
    driver.state.processes = [StubProcess(0, 10 + i, (i + 1) * GIB, sm=10) for i in range(3)]
    uids = [f"00000000-1111-2222-3333-{i:012x}" for i in range(3)]
    for i, uid in enumerate(uids):
        proc.add(10 + i, uid)
    pods = Pods(
        {
            uids[0]: PodInfo("team", "train-0", "job-train"),
            uids[1]: PodInfo("team", "train-1", "job-train"),
            uids[2]: PodInfo("team", "sneak", "pod-sneak", ours=False),
        }
    )
    monitor = Monitor(AgentSettings(node="n0", proc=proc.root), pods=pods)
    monitor.paces = {uids[0]: Pace(2.0), uids[1]: Pace(3.0)}
    for _ in range(2):
        driver.advance(2)
        monitor.tick(driver.now_s, STAMP)
    driver.state.xids = [StubXid(0, 79, seq=1)]
    driver.advance(2)
    monitor.tick(driver.now_s, STAMP)
    status = monitor.status(driver.now_s, STAMP)
    registry = CollectorRegistry()
    publisher = Publisher("n0", writer=None)
    registry.register(AgentCollector("n0", lambda: status, monitor, publisher, pods, detail=True))
    yield registry
    monitor.close()


def test_pods_of_a_job_are_summed_and_strangers_left_out(registry):
    labels = {"node": "n0", "UUID": "GPU-a", "namespace": "team", "job": "job-train"}
    assert registry.get_sample_value("tandem_job_memory_bytes", labels) == 3 * GIB
    assert registry.get_sample_value("tandem_job_iterations_per_second", labels) == 5
    assert registry.get_sample_value("tandem_job_utilisation_ratio", labels) == pytest.approx(0.2)
    assert "pod-sneak" not in generate_latest(registry).decode()


def test_gpu(registry):
    labels = {"node": "n0", "UUID": "GPU-a"}
    assert registry.get_sample_value("tandem_gpu_memory_foreign_bytes", labels) == 3 * GIB
    assert registry.get_sample_value("tandem_gpu_healthy", labels) == 0
    assert registry.get_sample_value("tandem_gpu_xids_total", {**labels, "xid": "79"}) == 1
    ecc = "tandem_gpu_ecc_uncorrected_errors_total"
    assert registry.get_sample_value(ecc, labels) == 3
    assert registry.get_sample_value(ecc, {**labels, "UUID": "GPU-b"}) is None, "none to tell of"
    busy = registry.get_sample_value("tandem_gpu_utilisation_ratio", {**labels, "source": "gpm"})
    assert busy == pytest.approx(0.15), "not mixed with the first reading, which was by samples"


def test_node(registry):
    def value(name, **labels):
        return registry.get_sample_value(f"tandem_node_{name}", {"node": "n0", **labels})

    assert value("gpus", state="in_use") == 1
    assert value("gpus", state="idle") == 1
    assert value("busy_gpus") == pytest.approx(0.15)
    assert value("utilisation_ratio") == pytest.approx(0.075)
    assert value("memory_bytes", kind="jobs") == 3 * GIB
    assert value("memory_bytes", kind="foreign") == 3 * GIB
    assert value("memory_bytes", kind="used") == 6 * GIB


@pytest.mark.parametrize("jobs_on_each", [0, 1, 2])
def test_a_node_of_eight_gpus_has_at_most_twenty_series(driver, proc, jobs_on_each):
    driver.state.gpus = [StubGpu(f"GPU-{i}", gpm=0.5) for i in range(8)]
    pods = Pods()
    for number in range(8 * jobs_on_each):
        uid = f"00000000-1111-2222-3333-{number:012x}"
        driver.state.processes.append(StubProcess(number % 8, 10 + number, GIB, sm=10))
        proc.add(10 + number, uid)
        pods[uid] = PodInfo("team", f"train-{number}", f"job-{number}")
    monitor = Monitor(AgentSettings(node="n0", proc=proc.root), pods=pods)
    for _ in range(2):
        driver.advance(2)
        monitor.tick(driver.now_s, STAMP)
    status = monitor.status(driver.now_s, STAMP)
    registry = CollectorRegistry()
    registry.register(ProcessFigures())
    publisher = Publisher("n0", writer=None)
    registry.register(AgentCollector("n0", lambda: status, monitor, publisher, pods))
    samples = [sample for family in registry.collect() for sample in family.samples]
    monitor.close()
    assert sum(s.value for s in samples if s.labels.get("state") == "in_use") == (
        8 if jobs_on_each else 0
    )
    assert len(samples) <= 20, [s.name for s in samples]


def test_no_report_yet_still_has_every_family():
    registry = CollectorRegistry()
    monitor = Monitor(AgentSettings(node="n0"))
    publisher = Publisher("n0", writer=None)
    registry.register(AgentCollector("n0", lambda: None, monitor, publisher, detail=True))
    assert "# HELP tandem_gpu_memory_bytes" in generate_latest(registry).decode()


def test_every_metric_and_setting_is_documented(registry):
    families = [metric.name for metric in registry.collect()]
    undocumented = [name for name in families if name.removeprefix("tandem_gpu_memory") not in DOC]
    assert len(families) > 15
    assert undocumented == []
    for section in (None, "health", "guard", "metrics"):
        model = type(getattr(AgentSettings(node="n"), section)) if section else AgentSettings
        for field in model.model_fields.keys() - {
            "node",
            "proc",
            "sys",
            "health",
            "guard",
            "metrics",
        }:
            assert f"`{section + '.' if section else ''}{field}`" in DOC or f"`.{field}`" in DOC, (
                field
            )


def test_job_series_pass_promtool(registry):
    promtool = binaries.find("promtool")
    if promtool is None:
        pytest.skip("promtool is not at hand: `tandem controlplane build` fetches it")
    text = generate_latest(registry)
    assert b"tandem_job_memory_bytes{" in text
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
