"""Mutation tests of the code that decides about safety.

mutmut (see `[tool.mutmut]` in pyproject.toml) changes one expression at a time and runs the fast
tests that reach the function. It keeps each outcome with a hash of the function, so that a change
of one function costs its own mutants alone. Of each module a sample is tried, drawn by a seed: the
same one as long as the module does not change. What survived before is tried again every time.

    python -m benchmarks.mutants --each 25 --page docs/mutants.md
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "mutants"
REASONS = Path(__file__).with_suffix(".toml")
MUTMUT = (sys.executable, "-m", "mutmut")
#: One small module: whatever is asked for, mutmut makes the mutants of all of them first.
_FIRST = "node_agent.guard.*"
_BATCH = 100  # names in one command line
_KILLED = {1, 3, 37, 36, 24, -24, 152, 255}  # failed, or ran into the time limit
_SURVIVED, _NO_TESTS = {0}, {5, 33}


@dataclass
class Module:
    """A module's mutants by name, with the exit code of pytest for those that were tried."""

    name: str
    codes: dict[str, int | None]
    sample: list[str] = field(default_factory=list)

    def outcomes(self) -> Counter[str]:
        """Return how many mutants of the sample had which outcome."""
        return Counter(outcome(self.codes[name]) for name in self.sample)


def outcome(code: int | None) -> str:
    """Return what an exit code of pytest says of a mutant."""
    if code is None:
        return "untried"
    if code in _KILLED:
        return "killed"
    return "survived" if code in _SURVIVED else "no tests" if code in _NO_TESTS else "odd"


def modules(each: int, seed: str) -> list[Module]:
    """Return the modules with a sample of `each` mutants, as mutmut has stored them."""
    found = []
    for file in sorted(MUTANTS.rglob("*.py.meta")):
        codes = json.loads(file.read_text())["exit_code_by_key"]
        if codes:
            name = str(file.relative_to(MUTANTS)).removesuffix(".py.meta").replace("/", ".")
            found.append(Module(name, codes, sample(codes, each, seed)))
    return found


def sample(names: Iterator[str] | dict[str, int | None], each: int, seed: str) -> list[str]:
    """Return `each` of the names: those of the lowest hash, whatever others there are."""
    return sorted(names, key=lambda n: hashlib.sha256(f"{seed} {n}".encode()).digest())[:each]


def run(names: Sequence[str], workers: int) -> None:
    """Have mutmut try these mutants."""
    for start in range(0, len(names), _BATCH):
        command = [*MUTMUT, "run", "--max-children", str(workers), *names[start : start + _BATCH]]
        answer = subprocess.run(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if answer.returncode != 0:
            sys.exit(f"mutmut failed:\n{answer.stdout[-4000:]}")


def diff(name: str) -> str:
    """Return the lines that a mutant changes, as - and + lines."""
    command = [*MUTMUT, "show", name]
    shown = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False).stdout
    changed = [line for line in shown.splitlines() if re.match(r"[-+](?![-+])", line)]
    return "\n".join(changed)


def page(found: Sequence[Module], seed: str, reasons: dict[str, str]) -> str:
    """Return docs/mutants.md."""
    lines = [
        "# Mutants",
        "",
        "`make mutants` changes one expression at a time in the code that decides about safety,",
        "and runs the fast tests that reach the changed function. A mutant that no test notices",
        "survives: it needs a test, a simplification, or a reason why the behaviour is the same.",
        f"A sample of each module is tried, drawn with the seed `{seed}`.",
        "",
        "| module | mutants | tried | killed | survived | score |",
        "|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    for module in found:
        count = module.outcomes()
        lines.append(_row(f"`{module.name}`", len(module.codes), count))
        total += count
    lines.append(_row("**all**", sum(len(module.codes) for module in found), total))
    survivors = [
        n for m in found for n in m.sample if outcome(m.codes[n]) not in ("killed", "untried")
    ]
    lines += ["", "## Survivors", ""] if survivors else []
    for name in survivors:
        said = reasons.get(name, "**open**: needs a test")
        lines += [f"`{name}`: {said}", "", "```diff", diff(name), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, mutants: int, count: Counter[str]) -> str:
    tried = count.total() - count["untried"]
    score = f"{100 * count['killed'] / tried:.0f} %" if tried else "-"
    rest = tried - count["killed"]
    return f"| {name} | {mutants} | {tried} | {count['killed']} | {rest} | {score} |"


def main() -> None:
    """Try what is not known yet, and what survived; print the score, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--each", type=int, default=25, help="mutants of each module")
    parser.add_argument("--seed", default="1", help="of the sample")
    parser.add_argument("--only", default="", help="modules whose names contain this")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--page", type=Path, help="write the score and the survivors there")
    args = parser.parse_args()
    os.environ.setdefault("TANDEM_SEED", "1")  # the same random input for every mutant
    run([_FIRST], args.workers)
    for module in modules(args.each, args.seed):
        if args.only in module.name:
            due = [n for n in module.sample if outcome(module.codes[n]) in ("untried", "survived")]
            run(due, args.workers)
            (now,) = [m for m in modules(args.each, args.seed) if m.name == module.name]
            print(f"{module.name}: {dict(now.outcomes())}", flush=True)
    if args.page:
        reasons = tomllib.loads(REASONS.read_text()) if REASONS.exists() else {}
        args.page.write_text(page(modules(args.each, args.seed), args.seed, reasons))


if __name__ == "__main__":
    main()
