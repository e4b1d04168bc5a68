"""The GPUNode belongs to its Node: it goes with it, and only with it."""

import pytest

from node_agent.publish import WriteError, gpu_node
from node_agent.writers import KubeWriter
from tandem.contracts.resources import GPUNodeStatus
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_NODES, NODES

REPORT = gpu_node("n0", GPUNodeStatus(observed_at="2026-01-02T03:04:05Z"))


@pytest.fixture
def api() -> MemoryCluster:
    return MemoryCluster()


def owners(api: MemoryCluster) -> list[str]:
    references = api.get(GPU_NODES, "n0")["metadata"].get("ownerReferences", [])
    return [reference["uid"] for reference in references]


def test_a_new_report_is_owned_by_its_node(api: MemoryCluster) -> None:
    uid = api.create(NODES, {"metadata": {"name": "n0"}})["metadata"]["uid"]
    KubeWriter(api).write("n0", REPORT)
    assert owners(api) == [uid]


def test_a_report_of_an_earlier_agent_or_of_an_earlier_node_gets_its_owner(
    api: MemoryCluster,
) -> None:
    api.create(GPU_NODES, {"metadata": {"name": "n0"}})
    for _ in range(2):
        uid = api.create(NODES, {"metadata": {"name": "n0"}})["metadata"]["uid"]
        KubeWriter(api).write("n0", REPORT)
        assert owners(api) == [uid]
        api.delete(NODES, "n0")


def test_an_agent_on_a_node_that_was_deleted_reports_nothing(api: MemoryCluster) -> None:
    writer = KubeWriter(api)
    api.create(NODES, {"metadata": {"name": "n0"}})
    writer.write("n0", REPORT)
    api.delete(NODES, "n0")
    api.delete(GPU_NODES, "n0")  # as the garbage collector does
    for _ in range(2):
        with pytest.raises(WriteError):
            writer.write("n0", REPORT)
    assert api.list(GPU_NODES) == []
    uid = api.create(NODES, {"metadata": {"name": "n0"}})["metadata"]["uid"]
    writer.write("n0", REPORT)
    assert owners(api) == [uid]
