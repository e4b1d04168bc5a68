"""Domains of nodes by their labels, whatever the order in which labels come and go."""

from __future__ import annotations

import numpy as np

from scheduler_extender.cluster.node_domains import NodeDomains

LEVELS = ("zone", "rack", "kubernetes.io/hostname")


def same_partition(mine: list[object], other: list[object]) -> bool:
    """Say whether equal entries of one list are where equal entries of the other are."""
    return len(set(zip(mine, other, strict=True))) == len(set(mine)) == len(set(other))


def test_nodes_are_in_one_domain_where_their_labels_are_equal_from_the_widest_level_on(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    domains = NodeDomains(LEVELS)
    labels: dict[int, dict[str, str]] = {}
    slots = np.arange(150)
    for _ in range(600):
        slot = int(rng.integers(150))
        labels[slot] = {
            level: str(rng.integers(3)) for level in LEVELS if rng.random() < 0.7
        } | {"other": str(rng.integers(9))}  # fmt: skip
        domains.put(slot, labels[slot])
    topology = domains.of(slots)
    assert topology is not None
    for index, level in enumerate(LEVELS):
        found = topology.domain[:, index].tolist()
        wanted: list[object] = [
            tuple(of.get(each, "") for each in LEVELS[: index + 1]) if level in of else None
            for of in (labels.get(slot, {}) for slot in slots.tolist())
        ]
        assert [each < 0 for each in found] == [each is None for each in wanted]
        assert same_partition(found, wanted)
        assert domains.at(slots, index).tolist() == found
        assert max(found) < 150
    racks: list[object] = [domains.rack(slot) for slot in slots.tolist()]
    gathered: list[object] = [
        (labels.get(slot, {}).get("zone", ""), labels.get(slot, {}).get("rack", ""))
        for slot in slots.tolist()
    ]
    assert same_partition(racks, gathered)
    assert [rack == 0 for rack in racks] == [names == ("", "") for names in gathered]


def test_names_that_no_node_has_any_more_take_up_nothing() -> None:
    domains = NodeDomains(("rack",))
    for number in range(1000):
        domains.put(0, {"rack": f"r{number}"})
        assert domains.at(np.array([0, 7]), 0)[0] in (0, 1)
        assert domains.rack(0) in (1, 2)
    domains.put(0, {})
    assert domains.at(np.array([0, 7, -1, 900]), 0).tolist() == [-1] * 4
    assert domains.rack(0) == domains.rack(900) == 0


def test_the_topology_is_the_same_object_until_labels_of_a_level_change() -> None:
    domains, slots = NodeDomains(("rack",)), np.arange(3)
    domains.put(0, {"rack": "a"})
    first = domains.of(slots)
    domains.put(1, {"other": "b"})
    assert domains.of(slots) is first
    domains.put(1, {"rack": "b"})
    assert domains.of(slots) is not first
    assert NodeDomains(()).of(slots) is None
