"""`tandem doctor` where Tandem only records: what it checks there, and what it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cli_cluster import NOW_S, SYSTEM, Site

from tandem.cli.doctor.cluster import DEPLOYMENTS
from tandem.cli.doctor.command import CHECKS, EVERY, SHADOW_CHECKS
from tandem.cli.doctor.findings import Finding, Outcome, examine
from tandem.contracts.shadow import DAY_S, ShadowDay, config_map_name, data_of
from tandem.kube.resource import CONFIG_MAPS, NODES

TODAY = int(NOW_S // DAY_S)


class ShadowSite(Site):
    """What `mode: shadow` of the chart makes, next to nodes of NVIDIA's device plugin."""

    def add_node(self, name: str, index: int = 0) -> None:
        self.api.create(
            NODES,
            {
                "metadata": {"name": name},
                "status": {"capacity": {"cpu": "32", "nvidia.com/gpu": "8"}},
            },
        )

    def _add_services(self) -> None:
        recorder = {"metadata": {"name": "tandem-shadow"}, "status": {"availableReplicas": 1}}
        self.api.create(DEPLOYMENTS, recorder, SYSTEM)
        self.record(NOW_S - 200)

    def record(self, saved_s: float) -> None:
        """Let the recorder have written today's record at that time, and never since."""
        day = ShadowDay(number=TODAY, since_s=NOW_S - 9 * DAY_S, saved_s=saved_s)
        body = {"metadata": {"name": config_map_name(TODAY)}, "binaryData": data_of(day)}
        self.forget()
        self.api.create(CONFIG_MAPS, body, SYSTEM)

    def forget(self) -> None:
        if self.cluster().get(CONFIG_MAPS, config_map_name(TODAY), SYSTEM):
            self.api.delete(CONFIG_MAPS, config_map_name(TODAY), SYSTEM)


def examined(site: Site) -> list[Finding]:
    return list(examine(EVERY, site.cluster()))


def test_nothing_is_wrong_with_a_healthy_recorder() -> None:
    found = examined(ShadowSite())
    assert {each.outcome for each in found} == {Outcome.OK}, found
    assert [each.check for each in found] == ["version", *(name for name, _ in SHADOW_CHECKS)]


def test_an_installation_that_places_jobs_is_checked_as_before() -> None:
    assert examined(Site()) == list(examine(CHECKS, Site().cluster()))


def test_one_without_its_scheduler_and_without_a_recorder_is_no_recorder() -> None:
    site = Site()
    site.api.delete(DEPLOYMENTS, "tandem-scheduler", SYSTEM)
    failures = [each.check for each in examined(site) if each.outcome is Outcome.FAILED]
    assert failures == ["scheduler"]


def test_who_may_not_read_deployments_gets_the_checks_of_the_usual_mode() -> None:
    site = Site()
    site.api.unreadable.add(DEPLOYMENTS)
    assert {each.check for each in examined(site)} == {name for name, _ in CHECKS}


def no_rights(site: ShadowSite) -> None:
    site.api.denied.add(("", "get", "configmaps"))


def account_without_rights(site: ShadowSite) -> None:
    site.api.denied.add(("tandem-shadow", "watch", "pods"))


def down(site: ShadowSite) -> None:
    site.change(DEPLOYMENTS, "tandem-shadow", {"status": {"availableReplicas": 0}}, SYSTEM)


def late(site: ShadowSite) -> None:
    site.record(NOW_S - 3600)


def no_record(site: ShadowSite) -> None:
    site.forget()


def damaged(site: ShadowSite) -> None:
    site.change(CONFIG_MAPS, config_map_name(TODAY), {"binaryData": {"day": "eA=="}}, SYSTEM)


def no_gpus(site: ShadowSite) -> None:
    for name in ("gpu-0", "gpu-1"):
        site.change(NODES, name, {"status": {"capacity": {"nvidia.com/gpu": None}}})


BROKEN: list[tuple[Callable[[ShadowSite], None], str, str, str]] = [
    (no_rights, "your rights", "you may not get configmaps in tandem-system", "--clusterrole=view"),
    (account_without_rights, "account", "tandem-shadow may not watch pods", "helm upgrade"),
    (down, "recorder", "its pod does not run", "component=shadow"),
    (late, "record", "the record was last written 60 minutes ago", "deployment/tandem-shadow"),
    (no_record, "record", "nothing of today or yesterday is recorded", "deployment/tandem-shadow"),
    (damaged, "record", "cannot be read", "deployment/tandem-shadow"),
    (no_gpus, "GPU nodes", "no node has the resource nvidia.com/gpu", "device plugin"),
]


@pytest.mark.parametrize(
    ("break_it", "check", "says", "do"), BROKEN, ids=[each[0].__name__ for each in BROKEN]
)
def test_the_fault_is_named_with_what_to_do(
    break_it: Callable[[ShadowSite], None], check: str, says: str, do: str
) -> None:
    site = ShadowSite()
    break_it(site)
    (failure,) = [each for each in examined(site) if each.outcome is Outcome.FAILED]
    assert failure.check == check
    assert says in failure.says
    assert do in failure.do


def test_each_check_fails_in_some_broken_cluster() -> None:
    assert {each[1] for each in BROKEN} == {name for name, _ in SHADOW_CHECKS}
