"""`python -m proof.real_faults`: faults on real nodes; the tables of docs/evidence/real-node.md.

The faults are the tests of tests/realnode/test_real_faults.py, which need root, the programs of
`tandem controlplane build --real-nodes` and the images of `make images`. What they record is in
docs/evidence/real-node.json, by the name of the fault, so that they may be run one at a time
(`-k`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.tables import markdown

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "docs" / "evidence"
KEPT, PAGE = EVIDENCE / "real-node.json", EVIDENCE / "real-node.md"


def kept() -> dict[str, Any]:
    """Return what earlier runs have recorded: `faults` by name, and `jobs`."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {"faults": {}, "jobs": {}}


def keep(record: dict[str, Any]) -> None:
    """Write the record and the tables of the page."""
    KEPT.write_text(json.dumps(record, indent=1) + "\n")
    text = PAGE.read_text()
    tables = {
        "faults": _faults(record["faults"]),
        "jobs": _jobs(record["jobs"]),
        "versions": _versions(record.get("versions", {})),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = before + begin + table + end + rest.split(end)[1]
    PAGE.write_text(text)


def _faults(rows: dict[str, dict[str, Any]]) -> str:
    if not rows:
        return "Not measured yet.\n"
    head = ["fault", "detected after, s", "held", "freed after, s", "reported", "load"]
    lines = [
        [
            name,
            f"{row['detected_s']:.1f}",
            row["held"],
            "never" if row["freed_s"] is None else f"{row['freed_s']:.1f}",
            row["reported"].replace("|", "/"),
            f"{row['load']:.0f}",
        ]
        for name, row in rows.items()
    ]
    return markdown(head, lines) + "\n"


def _jobs(row: dict[str, Any]) -> str:
    if not row:
        return "Not measured yet.\n"
    head = ["from apply to container start, s", "p50", "p99"]
    kinds = (("with Tandem", "tandem"), ("plain, without the extender", "plain"))
    lines = [[what, f"{row[kind]['p50']:.2f}", f"{row[kind]['p99']:.2f}"] for what, kind in kinds]
    ratios = [row["tandem"][name] / row["plain"][name] for name in ("p50", "p99")]
    lines.append(["ratio", *(f"{ratio:.2f}" for ratio in ratios)])
    return (
        markdown(head, lines)
        + f"\n\n{row['jobs']} jobs of each kind, at most {row['in_flight']} at a time;"
        f" {row['failed_requests']} requests to create a job failed and were made again;"
        f" load of the machine {row['load']:.0f}.\n"
    )


def _versions(versions: dict[str, dict[str, Any]]) -> str:
    if not versions:
        return "Not measured yet.\n"
    head = ["Kubernetes", "tests", "passed", "skipped", "failed", "minutes", "load", "commit"]
    lines = [
        [
            minor,
            suite,
            *(str(row[name]) for name in ("passed", "skipped")),
            ", ".join(row["failed"]) or "none",
            f"{row['minutes']:.0f}",
            f"{row['load']:.0f}",
            row["commit"],
        ]
        for minor, suites in sorted(versions.items())
        for suite, row in suites.items()
    ]
    return markdown(head, lines) + "\n"


def main() -> int:
    """Run the tests that are asked for; return pytest's status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only tests of these names, as pytest takes them")
    parser.add_argument("--records", type=Path, help="run nothing: take the lines of this file")
    arguments = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        lines = arguments.records or Path(folder) / "lines"
        if not arguments.records:
            tests = [
                "tests/realnode/test_real_faults.py",
                *(["-k", arguments.k] * bool(arguments.k)),
            ]
            status = subprocess.run(
                [sys.executable, "-m", "pytest", "-n0", "-s", *tests],
                cwd=ROOT,
                env={**os.environ, "TANDEM_REAL_RECORD": str(lines)},
                check=False,
            ).returncode
        record = kept()
        for line in lines.read_text().splitlines() if lines.exists() else []:
            row = json.loads(line)
            record["faults"][row.pop("fault")] = row
    keep(record)
    return status


if __name__ == "__main__":
    sys.exit(main())
