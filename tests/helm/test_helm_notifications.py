"""Notifications on single jobs: by promtool, when each begins and ends, and its text; the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_render import CHART, NOTIFICATIONS, render
from test_helm_alerts import promtool

from controlplane import binaries, monitoringtools

RULES = CHART / "files" / "notifications.yaml"
#: Labels of a job's series as kube-state-metrics writes them, and those of its notification.
JOB = {"namespace": "team-a", "gpujob": "job-bert", "kind": "Job", "workload": "bert"}
OTHERS = {"instance": "k", "customresource_kind": "GPUJob"}
WHY = "`tandem why team-a/job-bert`"

#: What is expected of an alert at a minute: the summary and the description, or that it is quiet.
Looks = dict[int, tuple[str, str] | None]


def series(name: str, **labels: str) -> str:
    shown = ",".join(f'{key}="{value}"' for key, value in (JOB | OTHERS | labels).items())
    return f"tandem_gpujob_{name}{{{shown}}}"


def phase(name: str) -> str:
    return series("phase", phase=name)


RUNNING, WAITING = (
    series("running_since_timestamp_seconds"),
    series("waiting_since_timestamp_seconds"),
)
PREEMPTED, SLOWDOWN = series("preempted_timestamp_seconds"), series("slowdown_ratio")
DECIDED = "decision_timestamp_seconds"

STARTED = (
    "Job bert in team-a has started",
    f"It has its GPUs and runs. There is nothing to do. {WHY} shows where it runs, and what slows "
    "it down.",
)
PREEMPTION = (
    "Job bert in team-a was preempted",
    "It gives up its GPUs for other jobs, stays in the queue and starts again by itself, from the "
    f"state that it has saved. {WHY} says why, and when it is expected to run again.",
)


def waits(how_long: str) -> tuple[str, str]:
    return (
        f"Job bert in team-a has waited for GPUs for {how_long}",
        f"{WHY} says what it waits for and when it is expected to start. `tandem what-if "
        "team-a/job-bert --gpus N` says whether it would start sooner with fewer GPUs.",
    )


FULL = (
    "Job bert in team-a ran out of GPU memory",
    "Its next run is placed where more memory is free. If it fails again, use a smaller batch, or "
    f"declare more with the annotation tandem.gpu/memory. {WHY} says how much it held.",
)
SLOW = (
    "Job bert in team-a takes 60% longer than alone",
    "Other jobs on its GPUs slow it down. Tandem moves one of them where another place is free. "
    'With the annotation tandem.gpu/exclusive: "true" the job would have GPUs for itself, and '
    f"might wait longer for them. {WHY} says how much time it has lost.",
)

#: By alert: series of promtool's (one value a minute, from time 0 on), and when it is expected.
#: Each ends two minutes after its condition.
CASES: dict[str, list[tuple[dict[str, str], Looks]]] = {
    "TandemJobStarted": [
        (
            {phase("Queued"): "1x4 stale", phase("Running"): "_x5 1x60", RUNNING: "_x5 300x60"},
            {4: None, 6: STARTED, 13: STARTED, 20: None},
        ),
        # kube-state-metrics starts again: the notification neither ends nor comes twice.
        (
            {phase("Running"): "1 1 1 stale 1x60", RUNNING: "0 0 0 stale 0x60"},
            {2: STARTED, 3: STARTED, 4: STARTED, 20: None},
        ),
        # A job that has ended keeps the time of its start.
        ({phase("Completed"): "1x60", RUNNING: "0x60"}, {5: None}),
    ],
    "TandemJobWaitsLong": [
        (
            {phase("Queued"): "1x70 stale", phase("Running"): "_x71 1x60", WAITING: "0x130"},
            {59: None, 61: waits("1h 1m 0s"), 70: waits("1h 10m 0s"), 75: None},
        ),
        # Pods that a running job asks for in addition wait, and the job does not.
        ({phase("Running"): "1x130", WAITING: "0x130"}, {100: None}),
    ],
    "TandemJobPreempted": [
        (
            {
                phase("Running"): "1x9 stale _x19 1x60",
                phase("Preempting"): "_x10 1 stale",
                phase("Suspended"): "_x11 1x18 stale",
                PREEMPTED: "_x10 600x90",
            },
            {9: None, 10: PREEMPTION, 28: PREEMPTION, 35: None},
        ),
        # Back on its GPUs before a scrape has seen it without them.
        ({phase("Running"): "1x60", PREEMPTED: "_x10 600x50"}, {9: None, 10: PREEMPTION, 15: None}),
        # A job that was preempted yesterday.
        ({phase("Running"): "1x60", PREEMPTED: "-86400x60"}, {5: None}),
    ],
    "TandemJobOutOfMemory": [
        (
            {
                series(DECIDED, what="OutOfMemory", at="first"): "_x10 600x60",
                series(DECIDED, what="Placed", at="then"): "_x10 601x60",
            },
            {9: None, 10: FULL, 24: FULL, 30: None},
        ),
        ({series(DECIDED, what="Placed", at="first"): "0x60"}, {1: None}),
    ],
    "TandemJobSlowedDown": [
        (
            {phase("Running"): "1x90", SLOWDOWN: "0.1x9 0.6x20 0.1x60"},
            {9: None, 14: None, 16: SLOW, 29: SLOW, 35: None},
        ),
        # For some minutes only, or of a run that has ended.
        ({phase("Running"): "1x90", SLOWDOWN: "0.1x9 0.6x2 0.1x60"}, {12: None, 16: None}),
        ({phase("Completed"): "1x90", SLOWDOWN: "0.6x90"}, {30: None}),
    ],
}


def rules(text: str) -> dict[str, Any]:
    (group,) = yaml.safe_load(text)["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_rules_are_sound() -> None:
    answer = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.slow
def test_each_says_what_happened_and_what_to_do_while_it_holds(tmp_path: Path) -> None:
    found = rules(RULES.read_text())
    assert CASES.keys() == found.keys()
    tests = []
    for name, cases in CASES.items():
        for given, looks in cases:
            for minute, expected in looks.items():
                tests.append(
                    {
                        "name": f"{name} at minute {minute}",
                        "interval": "1m",
                        "input_series": [{"series": s, "values": v} for s, v in given.items()],
                        "alert_rule_test": [
                            {
                                "eval_time": f"{minute}m",
                                "alertname": name,
                                "exp_alerts": []
                                if expected is None
                                else [
                                    {
                                        "exp_labels": JOB | found[name]["labels"],
                                        "exp_annotations": dict(
                                            zip(("summary", "description"), expected, strict=True)
                                        ),
                                    }
                                ],
                            }
                        ],
                    }
                )
    file = tmp_path / "cases.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    answer = promtool("test", "rules", str(file))
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_there_are_none_unless_asked_for() -> None:
    for given in ((), (*NOTIFICATIONS, "--set", "mode=shadow")):
        objects = render("--set", "monitoring.operator=always", *given)
        assert not [o for o in objects if o["metadata"]["name"] == "tandem-notifications"]
        assert not [o for o in objects if o["kind"] == "AlertmanagerConfig"]


def test_each_namespace_has_a_route_for_its_own_alone() -> None:
    receiver = '{"webhookConfigs": [{"url": "https://example.com"}]}'
    given = f'monitoring.notifications.receivers={{"team-a": {receiver}, "team-b": {receiver}}}'
    objects = render("--set", "monitoring.operator=always", *NOTIFICATIONS, "--set-json", given)
    routes = {
        o["metadata"]["namespace"]: o["spec"] for o in objects if o["kind"] == "AlertmanagerConfig"
    }
    assert routes.keys() == {"team-a", "team-b"}
    for namespace, spec in routes.items():
        matchers = [(m["name"], m["matchType"], m["value"]) for m in spec["route"]["matchers"]]
        assert ("namespace", "=", namespace) in matchers
        assert ("audience", "=", "users") in matchers
        assert [each["name"] for each in spec["receivers"]] == [spec["route"]["receiver"]]


def test_thresholds_are_those_of_the_values() -> None:
    sets = ("longWaitSeconds=7200", "slowdownPercent=25")
    given = [part for each in sets for part in ("--set", f"monitoring.notifications.{each}")]
    objects = render("--set", "monitoring.operator=always", *NOTIFICATIONS, *given)
    (made,) = [
        o["spec"]
        for o in objects
        if (o["kind"], o["metadata"]["name"]) == ("PrometheusRule", "tandem-notifications")
    ]
    found = rules(yaml.safe_dump(made))
    assert "> 7200" in found["TandemJobWaitsLong"]["expr"]
    assert "> 0.25" in found["TandemJobSlowedDown"]["expr"]
    shipped = rules(RULES.read_text())
    unchanged = shipped.keys() - {"TandemJobWaitsLong", "TandemJobSlowedDown"}
    assert {name: found[name] for name in unchanged} == {name: shipped[name] for name in unchanged}


def test_what_runs_is_what_the_tests_run() -> None:
    (container,) = [
        o["spec"]["template"]["spec"]["containers"][0]
        for o in render(*NOTIFICATIONS)
        if (o["kind"], o["metadata"]["name"]) == ("Deployment", "tandem-notifications")
    ]
    (tool,) = [tool for tool in monitoringtools.TOOLS if tool.name == container["name"]]
    assert container["image"].rpartition(":")[2] == binaries.version(tool)
