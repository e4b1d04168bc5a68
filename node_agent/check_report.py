"""Reports the results of a check on a real GPU, as a page and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from node_agent.app import stamp


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what was seen, what was to be seen, and whether it held."""

    what: str
    seen: str
    bar: str
    held: bool


@dataclass(slots=True)
class Report:
    """The findings, in the order in which they were made, and what else is worth knowing."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def found(self, what: str, seen: object, bar: str, held: bool) -> None:
        """Note a finding."""
        self.findings.append(Finding(what, str(seen), bar, held))
        print(f"{'ok  ' if held else 'FAIL'} {what}: {seen} ({bar})", flush=True)

    def write(self, folder: Path, name: str, title: str, command: str) -> bool:
        """Write `name`.json and `name`.md into `folder`; return whether all held."""
        folder.mkdir(parents=True, exist_ok=True)
        findings = [asdict(each) for each in self.findings]
        report = {"at": stamp(), **self.facts, "findings": findings}
        (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
        rows = [
            f"| {f.what} | {f.seen} | {f.bar} | {'yes' if f.held else '**no**'} |"
            for f in self.findings
        ]
        table = ["| what | seen | to be | held |", "|---|---|---|---|", *rows]
        facts = "\n\n```json\n" + json.dumps(self.facts, indent=1) + "\n```\n"
        head = f"# {title}\n\nMeasured {report['at']} by `{command}`.\n\n"
        (folder / f"{name}.md").write_text(head + "\n".join(table) + facts)
        return all(finding.held for finding in self.findings)
