"""`make chaos`: everything that repeats a fault, with its full counts; docs/evidence/chaos.md.

Each suite is a run of pytest of its own. What it showed is kept in docs/evidence/chaos.json with
the commit, so that suites may be run on different days; the page has the latest run of each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.tables import commit, git, markdown

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "docs" / "evidence"
KEPT, PAGE = EVIDENCE / "chaos.json", EVIDENCE / "chaos.md"
#: All files but the pages, which other measurements write meanwhile.
OTHERS = (":/", ":(top,exclude)docs")
#: What pytest printed, whole: a file for each suite.
OUTPUT = ROOT / ".out" / "chaos"


@dataclass(frozen=True)
class Suite:
    """A run of pytest, and what it shows."""

    name: str
    shows: str
    tests: tuple[str, ...]
    planes: int = 1  # at a time, each with a part of the tests


E2E = "tests/e2e/test_e2e"
_DELETIONS = "test_deletions_without_an_event_leak_nothing"
SUITES = (
    Suite("binding", "the extender killed while it binds; the API server or the extender away",
          (f"{E2E}_chaos.py", "--deselect", f"{E2E}_chaos.py::{_DELETIONS}")),
    Suite("deletions", "pods deleted while the extender is cut off from the API server",
          (f"{E2E}_chaos.py::{_DELETIONS}",)),
    Suite("answers", "64 pods for 16 GPUs; answers to Bindings lost",
          ("tests/extender/test_extender_live.py",)),
    Suite("takeover", "two pairs: the leader's stopped, killed, cut off, its extender hung",
          (f"{E2E}_takeover.py",)),
    Suite("storms", "410, 500 and 503 to every request", ("tests/kube/test_kube_storms.py",)),
    Suite("points", "killed at twenty points of admission, binding and preemption, with a gang",
          (f"{E2E}_queue_faults.py",), planes=2),
    Suite("flood", "one tenant attacks in every way at once while another's jobs run",
          (f"{E2E}_flood.py",)),
    Suite("foreign", "a million pods without GPUs, whose last words hold an attack",
          ("tests/extender/test_extender_pods_without_gpus.py",)),
    Suite("starvation", "a stream of short jobs", (f"{E2E}_starvation.py",)),
    Suite("agents", "silent agents, memory outgrown, a lost GPU", (f"{E2E}_agent.py",)),
    Suite("drivers", "the DRA driver killed at its steps, with kubelet and containerd restarted",
          ("tests/node_agent/test_agent_dra_killed.py",
           "tests/realnode/test_real_dra_killed.py")),
    Suite("claims", "two pairs: the leader's stopped, killed, cut off while it allocates claims",
          (f"{E2E}_claims_takeover.py",)),
    Suite("restarts", "every component restarted in turn under load", (f"{E2E}_story.py",)),
    Suite("upgrade", "the chart upgraded and rolled back under a stream of jobs",
          ("tests/helm/test_helm_upgrade.py",)),
    Suite("hostile", "malformed and hostile models; a push of 500 MiB",
          ("tests/predictor/test_predictor_hostile.py", "tests/predictor/test_predictor_push.py")),
    # -s: its progress is shown while it runs.
    Suite("fuzz", "10,000 mutated inputs at each boundary",
          ("-s", "tests/fuzz", "tests/contracts/test_contracts_openapi.py")),
    Suite("past", "the report held against the pods' own records while leaders are killed",
          (f"{E2E}_past.py",)),
    Suite("training", "killed while it learns, and while it stores",
          ("tests/predictor/test_predictor_kill.py",)),
)  # fmt: skip


def run(suite: Suite, share: float, seed: str) -> dict[str, Any]:
    """Run a suite with `share` of the full counts; return what it showed."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        env = {
            **os.environ,
            "TANDEM_CHAOS": str(share),
            "TANDEM_CHAOS_RECORD": str(lines),
            "TANDEM_SEED": seed,
            "TANDEM_API_AWAY_S": str(max(60, round(300 * share))),
        }
        began = time.monotonic()
        several = (f"-n{suite.planes}", "--dist=worksteal") if suite.planes > 1 else ("-n0",)
        command = [sys.executable, "-m", "pytest", *several, "-rs", *suite.tests]
        OUTPUT.mkdir(parents=True, exist_ok=True)
        printed = OUTPUT / f"{suite.name}.log"
        status = _printed_to(printed, command, env)
        outcome = _outcome(printed.read_text())
        print(f"{outcome}: {printed}", flush=True)
        shown = (
            [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        )
    return {
        "suite": suite.name,
        "commit": commit(),
        "changed": bool(git("status", "--porcelain", "--untracked-files=no", "--", *OTHERS)),
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}",
        "load": round(os.getloadavg()[2], 1),  # mean of the last quarter of an hour
        "share": share,
        "seed": seed,
        "wall_s": round(time.monotonic() - began),
        "outcome": outcome,
        "passed": status == 0,
        "shown": shown,
    }


def _printed_to(file: Path, command: list[str], env: dict[str, str]) -> int:
    """Run a command, write what it prints to a file, show its progress; return its status."""
    with (
        file.open("w") as log,
        subprocess.Popen(
            command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            if line.startswith("progress: "):
                print(line, end="", flush=True)
    return process.wait()


def _outcome(output: str) -> str:
    """Return pytest's last line, without the time."""
    last = next((line for line in reversed(output.splitlines()) if " in " in line), "did not end")
    return last.strip("= ").rpartition(" in ")[0] or last


def page(kept: dict[str, dict[str, Any]]) -> str:
    """Return the report."""
    parts = [
        "# Under fault",
        "Written by `make chaos` (`python -m proof.chaos`) from chaos.json. Measured on "
        "a real control plane (etcd, API server, controller manager, kube-scheduler; kwok plays "
        "the kubelets) with the services as processes. `make test` repeats each fault a few times "
        "with a seed that it prints; here are the larger counts. Times are medians in seconds, "
        "with the largest. A share of 1 is the full count; what is below it was cut short. The "
        "load is what else the machine had to do.",
    ]
    known = [suite for suite in SUITES if suite.name in kept]
    rows = [
        [
            suite.name, suite.shows, each["outcome"], f"{each['share']:g}", each["seed"],
            each["commit"] + ("+" if each["changed"] else ""), each["when"], f"{each['wall_s']} s",
            f"{each['load']:g}",
        ]
        for suite in known
        for each in (kept[suite.name],)
    ]  # fmt: skip
    parts.append(
        markdown(
            ["suite", "faults", "outcome", "share", "seed", "commit", "UTC", "took", "load"], rows
        )
    )
    parts.append(f"Machine: {'; '.join(sorted({each['machine'] for each in kept.values()}))}.")
    shown = [
        [line["check"], line["what"], str(line["repeats"]), _figures(line["figures"])]
        for suite in known
        for line in kept[suite.name]["shown"]
    ]
    parts += ["## What was shown", markdown(["check", "fault", "repeats", "figures"], shown)]
    missing = [suite.name for suite in SUITES if suite.name not in kept]
    if missing:
        parts.append(f"Not run yet with these counts: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def _figures(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures.items())


def main() -> int:
    """Run the suites that were asked for, keep what they showed, write the page."""
    parser = argparse.ArgumentParser(prog="python -m proof.chaos")
    parser.add_argument("--share", type=float, default=1.0, help="of the full counts; 1: all")
    parser.add_argument("--page", type=Path, default=PAGE, help="where it is written, with a .json")
    parser.add_argument("--only", nargs="*", choices=[suite.name for suite in SUITES])
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    options = parser.parse_args()
    passed = True
    for suite in SUITES:
        if options.only is not None and suite.name not in options.only:
            continue
        print(f"--- {suite.name}, share {options.share:g}, seed {options.seed}", flush=True)
        result = run(suite, options.share, options.seed)
        passed &= result["passed"]
        file = options.page.with_suffix(".json")
        kept = json.loads(file.read_text()) if file.exists() else {}
        kept[suite.name] = result
        file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        options.page.write_text(page(kept))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
