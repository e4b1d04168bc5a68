"""Each alert, by promtool: a case in which it fires, and one that looks like it and must not."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_render import CHART, ROOT

from controlplane import binaries

RULES = CHART / "files" / "rules.yaml"

#: By alert: the minute of the look, series under which it fires, series under which it does not.
#: Series are promtool's: `first+step x times`, one value a minute.
Case = tuple[int, dict[str, str], dict[str, str]]
VERBS = 'tandem_extender_verb_duration_seconds_count{verb="filter",status="%s"}'
SLOW = 'tandem_extender_verb_duration_seconds_bucket{verb="bind",le="%s"}'
SILENCE = 'tandem_extender_watch_silence_seconds{instance="a",resource="pods"}'
GPUS = 'tandem_extender_gpus{instance="%s",state="%s"}'
REPORTS = 'tandem_agent_reports_total{instance="a",outcome="%s"}'
OUTGROWN = 'tandem_agent_nearly_full_total{instance="a",blame="%s"}'
ANSWERS = 'tandem_predictor_request_duration_seconds_count{route="/v1/predict",status="%s"}'
UNDER = 'tandem_predictor_memory_under_predicted_ratio{gpu="%s"}'
FED_BACK = 'tandem_predictor_feedback_total{gpu="%s"}'
BUSY = 'tandem_node_busy_gpus{node="%s"}'
IN_USE = 'tandem_node_gpus{node="%s",state="in_use"}'
PROMISED = "tandem_extender_promised_utilisation_ratio"
LEADS = 'tandem_extender_scheduler_up{instance="%s"}'
PODS = 'tandem_extender_silent_pods{instance="%s",component="%s"}'
DAY = 86400
CASES: dict[str, Case] = {
    "TandemSchedulerAbsent": (
        10,
        {'up{job="other"}': "1x20"},
        {'tandem_queue_jobs{phase="Queued"}': "0x20"},
    ),
    "TandemNobodyLeads": (
        5,
        {LEADS % "a": "0x10", LEADS % "b": "0x10"},
        {LEADS % "a": "0x10", LEADS % "b": "1x10"},
    ),
    "TandemReplicaSilent": (
        5,
        {PODS % ("a", "scheduler"): "0 1x10"},
        {PODS % ("a", "scheduler"): "0x10", PODS % ("a", "agent"): "1x10"},
    ),
    "TandemAgentsSilent": (
        5,
        {PODS % ("a", "agent"): "0 3x10", PODS % ("b", "agent"): "0x10"},
        {PODS % ("a", "agent"): "3 0x10", PODS % ("a", "scheduler"): "1x10"},
    ),
    "TandemGpuOvercommitted": (
        3,
        {"tandem_extender_gpus_overcommitted": "0 1x10"},
        {"tandem_extender_gpus_overcommitted": "0 1 0x10"},
    ),
    "TandemVerbErrors": (
        20,
        {VERBS % "200": "0+95x30", VERBS % "500": "0+5x30"},
        {VERBS % "200": "0+999x30", VERBS % "500": "0+1x30"},
    ),
    "TandemVerbsSlow": (
        30,
        {SLOW % "0.5": "0+90x40", SLOW % "1": "0+100x40", SLOW % "+Inf": "0+100x40"},
        {SLOW % "0.03": "0+100x40", SLOW % "0.5": "0+100x40", SLOW % "+Inf": "0+100x40"},
    ),
    "TandemCacheStale": (10, {SILENCE: "30+60x10"}, {SILENCE: "70x10"}),
    "TandemEventsFail": (
        15,
        {"tandem_extender_event_failures_total": "0x5 1x20"},
        {"tandem_extender_event_failures_total": "7x20"},
    ),
    "TandemAgentsStale": (
        10,
        {GPUS % ("a", "stale"): "8x20", GPUS % ("a", "quarantined"): "0x20"},
        {GPUS % ("a", "stale"): "0 8 8 0x20", GPUS % ("a", "quarantined"): "8x20"},
    ),
    "TandemAgentReportsFail": (
        30,
        {REPORTS % "written": "0+4x40", REPORTS % "failed": "0+1x40"},
        {REPORTS % "written": "0+40x40", REPORTS % "failed": "0+1x40"},
    ),
    "TandemGpusQuarantined": (
        20,
        {GPUS % ("a", "quarantined"): "1x30"},
        {GPUS % ("a", "quarantined"): "1x10 0x20", GPUS % ("a", "stale"): "1x30"},
    ),
    "TandemJobStarves": (
        20,
        {"tandem_queue_longest_wait_seconds": f"{DAY}+60x30"},
        {"tandem_queue_longest_wait_seconds": f"{DAY // 2}+60x30"},
    ),
    "TandemMemoryUnderpredicted": (
        360,
        {OUTGROWN % "outgrown": "0+1x400", OUTGROWN % "nobody": "0x400"},
        {OUTGROWN % "outgrown": "3x400", OUTGROWN % "nobody": "0+1x400"},
    ),
    "TandemPredictionDrift": (
        150,
        {BUSY % "n": "0.8x200", IN_USE % "n": "8x200", PROMISED: "0.9x200"},
        # A node on which no job of ours runs has no part in it.
        {
            BUSY % "n": "5.6x200",
            IN_USE % "n": "8x200",
            PROMISED: "0.9x200",
            BUSY % "idle": "0x200",
            IN_USE % "idle": "0x200",
        },
    ),
    "TandemPredictorDrift": (
        60,
        {UNDER % "V100": "0.3x80", FED_BACK % "V100": "25x80"},
        {
            UNDER % "V100": "0.05x80",
            FED_BACK % "V100": "200x80",
            # Three runs say nothing.
            UNDER % "T4": "0.66x80",
            FED_BACK % "T4": "3x80",
        },
    ),
    "TandemPredictorSilent": (
        5,
        {
            'tandem_extender_predictor_up{instance="a"}': "1 0x10",
            PODS % ("a", "predictor"): "0x10",
        },
        {
            PODS % ("a", "predictor"): "0x10",
            'tandem_extender_predictor_up{instance="a"}': "1 0x10",
            'tandem_extender_predictor_up{instance="b"}': "1x10",
        },
    ),
    "TandemPredictorErrors": (
        30,
        {ANSWERS % "200": "0+9x40", ANSWERS % "500": "0+1x40"},
        {ANSWERS % "200": "0+9x40", ANSWERS % "422": "0+5x40", ANSWERS % "500": "0x40"},
    ),
    # promtool's clock begins at 0.
    "TandemCertificateEnds": (
        90,
        {"tandem_extender_certificate_expiry_timestamp_seconds": f"{20 * DAY}x100"},
        {
            "tandem_extender_certificate_expiry_timestamp_seconds": f"{40 * DAY}x100",
            'tandem_extender_certificate_expiry_timestamp_seconds{instance="plain"}': "0x100",
        },
    ),
}


def alerts() -> dict[str, Any]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def promtool(*args: str) -> subprocess.CompletedProcess[str]:
    tool = binaries.find("promtool")
    if tool is None:
        pytest.skip("no promtool on this machine: `tandem controlplane build` fetches it on Debian")
    return subprocess.run([tool, *args], capture_output=True, text=True, check=False)


def test_rules_are_sound() -> None:
    answer = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    assert CASES.keys() == alerts().keys()
    tests = []
    for name, (minute, firing, quiet) in CASES.items():
        firing_now = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
        for series, fires in ((firing, True), (quiet, False)):
            tests.append(
                {
                    "name": f"{name} {'fires' if fires else 'is quiet'}",
                    "interval": "1m",
                    "input_series": [{"series": s, "values": v} for s, v in series.items()],
                    "promql_expr_test": [
                        {
                            "expr": f"count({firing_now}) > bool 0 or vector(0)",
                            "eval_time": f"{minute}m",
                            "exp_samples": [{"labels": "{}", "value": int(fires)}],
                        }
                    ],
                }
            )
    file = tmp_path / "alerts.yaml"
    given = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(yaml.safe_dump(given))
    answer = promtool("test", "rules", str(file))
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_each_alert_has_a_severity_and_a_runbook() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
        assert rule["annotations"]["summary"]
        _, _, section = page.partition(f"\n### {name}\n")
        section = section.partition("\n### ")[0]
        for part in ("**Means.**", "**Look.**", "**Do.**"):
            assert part in section, f"{name}: {part}"
