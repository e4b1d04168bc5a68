"""Which pods belong together and how many start together, kind by kind."""

import pytest
from queue_builders import pod

from scheduler_extender.cluster.selectors import selects
from scheduler_extender.cluster.workloads import KINDS, above, gang_size, gpujob_name

JOBSET = {"jobset.sigs.k8s.io/jobset-name": "set"}
WORKERS = {
    "leaderworkerset.sigs.k8s.io/name": "lws",
    "leaderworkerset.sigs.k8s.io/group-index": "3",
}


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        ("Job", {"parallelism": 4}, 1),
        ("Job", {"parallelism": 4, "completionMode": "Indexed"}, 4),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {
                        "name": "workers",
                        "replicas": 2,
                        "template": {"spec": {"parallelism": 3, "completions": 3}},
                    },
                    {"name": "one", "template": {"spec": {}}},
                ]
            },
            7,
        ),
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 7}}},
            8,
        ),
        ("MPIJob", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}}, 3),
        ("LeaderWorkerSet", {"replicas": 5, "leaderWorkerTemplate": {"size": 4}}, 4),
        ("RayCluster", {"workerGroupSpecs": [{"replicas": 3}]}, 4),
        ("Unheard", {"replicas": 3}, 1),
    ],
)
def test_the_kinds_own_meaning_says_who_starts_together(kind: str, spec: dict, size: int) -> None:
    assert gang_size(pod("p"), {"kind": kind, "spec": spec}) == size
    explicit = pod("p", annotations={"tandem.gpu/gang-size": "2"})
    assert gang_size(explicit, {"kind": kind, "spec": spec}) == 2


@pytest.mark.parametrize(
    ("labels", "owner", "name", "higher"),
    [
        (JOBSET, ("Job", "set-workers-0"), "jobset-set", ("JobSet", "set")),
        (WORKERS, ("StatefulSet", "lws-3"), "leaderworkerset-lws-3", ("LeaderWorkerSet", "lws")),
        ({}, ("RayCluster", "ray"), "raycluster-ray", None),
        ({}, ("PyTorchJob", "bert"), "pytorchjob-bert", None),
    ],
)
def test_parts_of_a_workload_share_its_gpujob(
    labels: dict, owner: tuple, name: str, higher: tuple | None
) -> None:
    member = pod("p", labels=labels, owner=owner)
    assert gpujob_name(member) == name
    assert above(member) == higher


def test_only_owners_that_can_rest_are_suspended_and_bare_pods_are_never_preempted() -> None:
    assert KINDS["Job"].suspend == ("spec", "suspend")
    assert KINDS["PyTorchJob"].suspend == ("spec", "runPolicy", "suspend")
    assert KINDS["LeaderWorkerSet"].suspend == ()
    assert not KINDS["Pod"].restarts


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "a"}}, True),
        ({"matchLabels": {"app": "b"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "x", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_selectors_of_disruption_budgets(selector: dict | None, matches: bool) -> None:
    assert selects(selector, {"app": "a"}) is matches
