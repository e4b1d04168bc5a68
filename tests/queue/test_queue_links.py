"""Pods of several GPUs get those that NVLink connects: from the reports of agents to plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from queue_builders import raw_pod
from test_queue_controller import SHARED
from test_queue_resources import Mixed

from tandem.contracts import names
from tandem.kube.resource import GPU_NODES, PODS
from tandem.policy.catalog import load_profile

#: Of eight GPUs 0 and 4 are connected, 1 and 5, and so on.
PAIRS = (0, 1, 2, 3, 0, 1, 2, 3)


class Linked(Mixed):
    """One node of eight GPUs."""

    def __init__(self, profile: str = "tandem") -> None:
        super().__init__(profile=load_profile(profile))
        self.node("n", gpus=8)

    def report(self, nvlink: Sequence[int | None] = PAIRS, **of_gpus: Sequence[Any]) -> None:
        gpus = self.api.get(GPU_NODES, "n")["status"]["gpus"]
        for at, gpu in enumerate(gpus):
            gpu |= {name: values[at] for name, values in of_gpus.items()}
            gpu["nvlinkDomain"] = nvlink[at]
        self.api.patch(GPU_NODES, "n", {"status": {"gpus": gpus}})

    def ask(self, name: str, gpus: int, **notes: str) -> None:
        notes = {**SHARED, names.EXCLUSIVE: "true", **notes}
        self.api.create(PODS, raw_pod(name, annotations=notes, gpus=gpus))

    def planned(self, name: str) -> list[str]:
        """Return the numbers of the GPUs that a pod is planned on."""
        (place,) = self.status(f"pod-{name}")["plan"]["pods"]
        return [gpu.removeprefix("GPU-n-") for gpu in place["gpus"]]


@pytest.mark.parametrize("profile", ["tandem", "fifo", "horus"])
def test_a_pod_of_two_gpus_is_planned_on_an_nvlink_pair(profile: str) -> None:
    cluster = Linked(profile)
    cluster.report()
    cluster.ask("a", 2)
    cluster.cycles()
    assert cluster.planned("a") == ["0", "4"]
    cluster.bind_as_planned("a")
    cluster.ask("b", 2)
    cluster.ask("c", 2)
    cluster.cycles()
    assert {tuple(cluster.planned(name)) for name in "bc"} <= {("1", "5"), ("2", "6"), ("3", "7")}


def test_without_links_the_first_gpus_are_planned() -> None:
    cluster = Linked()
    cluster.ask("a", 2)
    cluster.cycles()
    assert cluster.state.snapshot().links is None
    assert cluster.planned("a") == ["0", "1"]


def test_a_numa_node_counts_where_there_is_no_nvlink() -> None:
    cluster = Linked()
    cluster.report((None,) * 8, numaNode=(0, 1, 0, 1, 0, 1, 0, 1))
    cluster.ask("a", 2)
    cluster.cycles()
    assert cluster.planned("a") == ["0", "2"]


def test_a_quarantined_partner_is_not_taken() -> None:
    cluster = Linked()
    health = ["Healthy"] * 8
    health[4] = "Quarantined"
    cluster.report(health=health)
    cluster.ask("a", 2)
    cluster.cycles()
    assert cluster.planned("a") == ["1", "5"]


def test_a_partner_in_use_is_not_taken() -> None:
    cluster = Linked()
    cluster.report()
    cluster.ask("one", 1)
    cluster.cycles()
    assert cluster.planned("one") == ["0"]
    cluster.bind_as_planned("one")
    cluster.ask("a", 2)
    cluster.cycles()
    assert cluster.planned("a") == ["1", "5"]


def test_links_that_are_reported_later_count_from_then_on() -> None:
    cluster = Linked()
    cluster.ask("a", 2)
    cluster.cycles()
    cluster.bind_as_planned("a")
    cluster.report()
    cluster.ask("b", 2)
    cluster.cycles()
    assert (cluster.planned("a"), cluster.planned("b")) == (["0", "1"], ["2", "6"])
    cluster.report((None,) * 8)
    assert cluster.state.snapshot().links is None
