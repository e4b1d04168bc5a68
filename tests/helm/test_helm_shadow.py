"""`mode: shadow`: the rights that the chart gives, and what it does not install."""

from __future__ import annotations

import pytest
from helm_render import Object, render

from tandem.contracts import names
from tandem.contracts.shadow import SLOTS, config_map_name

READS = {"get", "list", "watch"}


@pytest.fixture(scope="module")
def shadow() -> list[Object]:
    return render("--set", "mode=shadow", "--api-versions", "monitoring.coreos.com/v1")


def test_it_installs_a_recorder_and_nothing_that_could_reach_a_pod(shadow: list[Object]) -> None:
    found = sorted((each["kind"], each["metadata"]["name"]) for each in shadow)
    assert found == [
        ("ClusterRole", "tandem-shadow"),
        ("ClusterRoleBinding", "tandem-shadow"),
        ("ConfigMap", "tandem-shadow"),
        ("Deployment", "tandem-shadow"),
        ("NetworkPolicy", "tandem-shadow"),
        ("Role", "tandem-shadow"),
        ("RoleBinding", "tandem-shadow"),
        ("ServiceAccount", "tandem-shadow"),
    ]
    assert {each["metadata"].get("namespace") for each in shadow} == {None, names.NAMESPACE}


def test_its_account_reads_pods_and_nodes_and_writes_its_own_config_maps(
    shadow: list[Object],
) -> None:
    roles = {each["kind"]: each for each in shadow if each["kind"] in ("ClusterRole", "Role")}
    (everywhere,) = roles["ClusterRole"]["rules"]
    assert everywhere["resources"] == ["pods", "nodes"]
    assert set(everywhere["verbs"]) == READS
    create, own = roles["Role"]["rules"]
    assert (create["resources"], create["verbs"]) == (["configmaps"], ["create"])
    assert (own["resources"], own["verbs"]) == (["configmaps"], ["get", "update"])
    assert sorted(own["resourceNames"]) == sorted(map(config_map_name, range(SLOTS)))


def test_without_it_there_is_no_recorder(rendered: list[Object]) -> None:
    assert not [each for each in rendered if each["metadata"]["name"] == "tandem-shadow"]


def test_the_recorder_writes_alone(shadow: list[Object]) -> None:
    (deployment,) = [each for each in shadow if each["kind"] == "Deployment"]
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "scheduler_extender.shadow"]
