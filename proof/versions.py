"""`python -m proof.versions [MINOR ...]`: the suites on other versions of Kubernetes.

For each version that `deploy/controlplane` pins next to the default one: its control plane and
kubelet are built, then the tests on a control plane and those on real nodes run on it. The
results are in docs/evidence/real-node.json by version, and in the table of
docs/evidence/real-node.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.tables import commit
from controlplane import binaries
from proof.real_faults import ROOT, keep, kept

_PLANE = "controlplane and not papers and not operators and not real"
#: What is run -> pytest's arguments.
SUITES = {
    "control plane": ("-n", "2", "--dist", "loadgroup", "-m", _PLANE, "tests"),
    "real nodes": ("-n0", "tests/realnode/test_real_story.py", "tests/realnode/test_real_chart.py"),
}


def run(minor: str, suite: str) -> dict[str, Any]:
    """Run a suite on a version; return what came of it."""
    chosen = {**os.environ, binaries.VERSION_VARIABLE: minor}
    load, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *SUITES[suite], f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, env=chosen, check=False)
        (found,) = ElementTree.parse(report).iter("testsuite")
    number = {name: int(found.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")}
    failed = number["failures"] + number["errors"]
    failing = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in found.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {
        "passed": number["tests"] - number["skipped"] - failed,
        "skipped": number["skipped"],
        "failed": failing,
        "minutes": (time.monotonic() - began) / 60,
        "load": load,
        "commit": commit(),
    }


def main() -> int:
    """Build and run each version; return 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minor", nargs="*", default=binaries.other_versions())
    parser.add_argument("--only", choices=SUITES, help="only this suite")
    arguments = parser.parse_args()
    tandem = Path(sys.executable).with_name("tandem")
    status = 0
    for minor in arguments.minor:
        build = [tandem, "controlplane", "build", "--real-nodes", "--kubernetes", minor]
        subprocess.run(build, cwd=ROOT, check=True)
        for suite in SUITES if arguments.only is None else [arguments.only]:
            result = run(minor, suite)
            record = kept()
            record.setdefault("versions", {}).setdefault(minor, {})[suite] = result
            keep(record)
            status = status or int(bool(result["failed"]))
    return status


if __name__ == "__main__":
    sys.exit(main())
