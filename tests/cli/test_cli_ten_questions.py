"""The ten questions of docs/cli.md on a real control plane whose true answers are known.

By the command, into a pipe and on a terminal of 80 columns, and by the page; and once more after
the predictor, the agent and one of two extenders were killed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from cli_live import Live
from question_cluster import (
    DOES_NOT_SHARE,
    FULL,
    OVER,
    TEAM,
    Cluster,
    Object,
    asked_cluster,
    flat,
    services_killed,
)
from question_table import table

from controlplane import Process, wait_until
from tandem.cli.output import out
from tandem.contracts import names

pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("cli")]

COLUMNS = 80


@pytest.fixture(scope="module")
def cluster(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with asked_cluster(live, tmp_path_factory.mktemp("second")) as found:
        yield found


@dataclass(frozen=True)
class Asked:
    """What is typed, words of the answer, words that would be wrong, and what the page must hold.

    `page` has for each view what is true of it.
    """

    command: tuple[str, ...]
    says: tuple[str, ...]
    page: tuple[tuple[str, Callable[[Object], bool]], ...]
    never: tuple[str, ...] = ()


def job(name: str) -> tuple[str, ...]:
    return ("why", name, "-n", TEAM)


def in_words(*words: str) -> Callable[[Object], bool]:
    return lambda view: all(each in json.dumps(view) for each in words)


def over_quota(view: Object) -> bool:
    rows = view["namespaces"]["rows"]
    return [row["namespace"] for row in rows if row["overQuota"]] == [OVER]


TRUE: dict[str, tuple[Asked, ...]] = {
    "Why does my job wait?": (
        Asked(
            job("waits"),
            ("It needs 1 GPU (0 of 2 GPUs can take it now).", FULL, DOES_NOT_SHARE),
            ((f"jobs/{TEAM}/job-waits", in_words(FULL, DOES_NOT_SHARE)),),
        ),
    ),
    "When will it start?": (
        Asked(("queue",), ("job-waits", "job-unknown"),
              (("jobs?phase=Waiting&sort=queue", in_words("job-waits", "job-unknown")),)),
    ),
    "What slows it down?": (
        Asked(
            job("one"),
            ("predicted, none measured", f"shares with {OVER}/job-two"),
            ((f"jobs/{TEAM}/job-one",
              lambda view: [each["name"] for each in view["neighbours"]] == ["job-two"]
              and not (view.get("observed") or {}).get("slowdown")),),
        ),
    ),
    "Which GPUs are idle?": (
        Asked(("gpus", "--idle"), (),
              (("overview", lambda view: view["gpus"]["byState"]["idle"] == 0),), never=("n0/",)),
        Asked(("gpus",), (f"{TEAM}/job-alone", f"{TEAM}/job-one,{OVER}/job-two"),
              (("gpus", in_words("job-alone", "job-one", "job-two")),)),
    ),
    "Did sharing pay?": (
        Asked(
            ("sharing",),
            ("1 GPU by 2 jobs", "It is expected to pay (predicted)"),
            (("overview", lambda view: view["sharing"]["gpus"] == 1
              and view["sharing"]["jobs"] == 2 and view["sharing"]["jobsMeasured"] == 0),),
            never=("(measured)",),
        ),
    ),
    "Why was it stopped?": (
        Asked(job("one"), ("Running",),
              ((f"jobs/{TEAM}/job-one", lambda view: not view["preemption"]),),
              never=("stopped",)),
    ),
    "What load was predicted?": (
        Asked(
            job("one"),
            ("8.0 GiB at most (declared), 20 % utilisation (declared)",),
            ((f"jobs/{TEAM}/job-one",
              lambda view: view["load"]["memoryP95Bytes"] == 8 << 30
              and view["load"]["memorySource"] == "declared"),),
        ),
    ),
    "Is my model known?": (
        Asked(job("waits"), ("resnet50 is known",), (("models", in_words("resnet50")),)),
        Asked(job("unknown"), ("gpt2 was not known when the job came: tandem model push FILE",),
              ((f"jobs/{TEAM}/job-unknown",
               lambda view: view["load"]["utilisationSource"] == "whole-gpu"),),
              never=("did not answer",)),
    ),
    "Which namespace is over quota?": (
        Asked(("quotas",), ("over quota",), (("overview", over_quota),)),
    ),
}  # fmt: skip


@pytest.fixture(params=["pipe", "terminal"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("COLUMNS", raising=False)
    if request.param == "terminal":
        monkeypatch.setattr(out, "_force_terminal", True)
        monkeypatch.setattr(out, "_color_system", None)
        monkeypatch.setattr(out, "_width", COLUMNS)
        monkeypatch.setattr(out, "_height", 50)
    return str(request.param)


def check(cluster: Cluster, screen: str) -> None:
    """Ask all but the last question, which each test answers by itself."""
    assert [*TRUE, "What is broken?"] == list(table())
    wait_until(cluster.start_is_as_forecast, "command and page tell the forecast", timeout_s=120)
    for question, all_asked in TRUE.items():
        for asked in all_asked:
            answer = cluster.run(*asked.command)
            assert answer.exit_code == 0, (question, answer.exception)
            said = flat(answer.stdout)
            for words in asked.says:
                assert flat(words).splitlines()[0] in said, (question, words, answer.stdout)
            for words in asked.never:
                assert flat(words).splitlines()[0] not in said, (question, answer.stdout)
            if screen == "terminal":
                assert max(map(len, answer.stdout.splitlines())) <= COLUMNS, question
            else:
                assert not set("│┃─━") & set(answer.stdout), "no boxes in a pipe"
            for path, holds in asked.page:
                view = cluster.view(path)
                assert holds(view), (question, path, view)


def test_all_answers_are_right(cluster: Cluster, screen: str) -> None:
    wait_until(lambda: cluster.attention() == {}, "all services answer", timeout_s=180)
    check(cluster, screen)
    assert cluster.failures() == {}
    assert cluster.page.get("/status/").body.count(b"<title>Tandem</title>") == 1


def test_broken_watches_of_our_own_pods_are_counted(cluster: Cluster) -> None:
    series = r'(?m)^tandem_extender_watch_failures_total{resource="([^"]+)"} '
    counted = re.findall(series, cluster.metrics())
    assert {f"{names.NAMESPACE}/pods", f"{names.AGENT_NAMESPACE}/pods", "pods"} <= set(counted)
    assert len(counted) == len(set(counted))


@pytest.fixture(scope="module")
def killed(cluster: Cluster) -> Iterator[list[Process]]:
    with services_killed(cluster) as victims:
        yield victims


@pytest.mark.usefixtures("killed")
def test_what_is_broken_is_said(cluster: Cluster, screen: str) -> None:
    said = flat(cluster.run("doctor").stdout)
    for words in ("1of2replicasavailable", "0of1replicaavailable", "0of1agentready"):
        assert words in said

    def silent() -> list[str]:
        rows = cluster.view("overview")["attention"]
        return next((sorted(row["names"]) for row in rows if row["kind"] == "replicaSilent"), [])

    # On a busy machine, another one may be late with an answer for a moment.
    wait_until(lambda: len(silent()) == 2, "two pods of services are silent", timeout_s=120)
    first, second = silent()
    assert first.startswith("tandem-predictor-")
    assert first.endswith(" (predictor)")
    assert second.startswith("tandem-scheduler-")
    assert second.endswith(" (extender)")
    (node,) = cluster.view("nodes?state=silent")["rows"]
    assert node["node"] == "n0"
    assert flat(cluster.run("gpus").stdout).count("silentagent") >= 2
    if screen == "pipe":
        alone = {names.MODEL: "resnet50", names.EXCLUSIVE: "true", names.MEMORY: "8Gi"}
        cluster.waits("late", alone)
        # The Service may lead to the extender that was killed until its endpoints are written anew.
        late = wait_until(lambda: cluster.run(*job("late")).stdout, "the other one answers")
        assert "the predictor did not answer when the job came" in late
        assert "was not known" not in late


@pytest.mark.usefixtures("killed")
def test_all_answers_are_right_while_services_are_down(cluster: Cluster, screen: str) -> None:
    check(cluster, screen)
