"""Write docs/equations.md from the docstrings of the equations, docs/evidence/papers.md from tags.

A tag is a comment above a function or class, or at the head of a module:

    # Paper: [Name] section, equation | what | test: FILE NAME | live: yes | deviation: why
    # Paper: [Name] section, equation | what | test: FILE NAME | live: no | reason: why

`ablation: CLAUSE` names the clause of `tandem` (studies/profiles/ablation.py) that it belongs to.

python -m studies.equations_doc --write    # or without --write: say whether it is current
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.pages import keep_current
from benchmarks.tables import markdown
from studies.profiles.ablation import CLAUSES
from studies.profiles.ablation import KEPT as ABLATION
from tandem.policy import equations

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "equations.md"
PAPERS_PAGE = ROOT / "docs" / "evidence" / "papers.md"
_TAGGED = ("tandem", "predictor", "node_agent", "scheduler_extender")
_TAG = re.compile(r"^# Paper: .*\n(?:#   .*\n)*", re.MULTILINE)
_SYMBOL = re.compile(r"(?:@\w[^\n]*\n)*(?:class|def) (\w+)")
PAPERS = {
    "Tiresias": "Gu et al., NSDI 2019",
    "Horus": "Yeung et al., TPDS 2021",
    "OJPP": "Li et al., JPDC 2024",
    "SJF-BSBF": "Luo et al., 2024",
    "Xonar": "2022",
}
_LABELS = re.compile(r"\b(Symbols|Shapes|Worked|Source|Differs)\b([^:.]{0,60}):")
_HEAD = """# Equations

What the policies calculate with. Each is a function of arrays in `tandem/policy/equations/`,
checked against its worked number and against a slow, obvious twin on random input. The papers'
letters collide with one another, so they stay on this page; configuration and metrics use the names
of the arguments.

Written by `python -m studies.equations_doc --write` from the docstrings.

Papers: [Horus] Yeung et al., TPDS 2021. [Tiresias] Gu et al., NSDI 2019. [OJPP] Li et al., JPDC
2024. [SJF-BSBF] Luo et al., 2024. [Xonar], 2022.
"""


_PAPERS_HEAD = """# The five papers

Every mechanism of the five papers: where it is described, where it is in the code, which test shows
it, and whether a cluster runs it. *Live* means that the scheduler extender, the node agent or the
predictor runs it when the profile or the setting that names it is chosen. What deviates from a
paper, and why, stands in the last column and in the docstring of the code. Figures and tables of
the evaluations: [Tiresias](results/tiresias.md), [Horus](results/horus.md),
[OJPP](results/ojpp.md), [SJF-BSBF](results/sjf-bsbf.md), [Xonar](results/xonar.md).

[Scenarios](results/scenarios.md) of single rules tell each system from a damaged one: each says
what one rule decides, and the page says which of them catches which damage.

`tests/paper_scenarios.py` has one course for each of the profiles `tiresias-l`, `tiresias-g`,
`horus`, `horus-f`, `ojpp`, `ojpap`, `sjf-bsbf`, `xonar`, `xonar-fifo-pairs` and `pab`, with the
paper's section. Only that profile passes it: all others fail it on the API server in memory
(`tests/queue/test_queue_papers.py`). On a control plane it runs under its own profile and under
the one that goes with it furthest (`make papers`, `tests/e2e/test_e2e_papers.py`). Theorem 1 of
SJF-BSBF: on a control plane with simulated GPUs, 197 of 200 random pairs share or wait as a replay
with the true times finds best (`tests/e2e/test_e2e_theorem_1.py`, `TANDEM_SEED=10127`, true
predictions); the test asserts 95 %. On the API server in memory they are 200 of 200, and about 187
where predicted speeds and iteration times have a mean error of 7 %
(`tests/queue/test_queue_theorem_1.py`).

*Acts in `tandem`* says how much a clause of the default profile decides: the part of the decisions
on 400 random boards that change without it, and on how many of four traces at least 1 % of them
change (`python -m studies.profiles.ablation --write`; [figures](results/ablation.md)). On a
trace, what changes early changes what is decided later. A dash: no clause of `tandem`, or one that
cannot be left out. With the loads that the shipped predictor says, and its own errors, Horus, OJPP,
SJF-BSBF, Xonar and `tandem` come to [this](results/simulated-predictions.md).

With the chart's defaults (two shares of a GPU, the project's predictor) each profile runs on a
control plane in `tests/e2e/test_e2e_profiles.py`. `ojpp` and `ojpap` have no cap in the paper; with
fewer than 16 shares the extender's log says to set `agent.config.shares`. `gandiva` is refused at
the start, with the setting to change.

Written by `python -m studies.equations_doc --write` from the tags (`# Paper:`) in the code.
"""


def equations_of(module: ModuleType) -> list[tuple[str, Callable[..., Any]]]:
    """Return the public functions and classes that `module` itself defines, as written there."""
    own = [
        (name, thing)
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(thing) or inspect.isclass(thing))
        and thing.__module__ == module.__name__
    ]
    return sorted(own, key=lambda item: inspect.getsourcelines(item[1])[1])


def modules() -> list[ModuleType]:
    """Return all modules of equations, by name."""
    return [
        import_module(f"{equations.__name__}.{info.name}")
        for info in sorted(pkgutil.iter_modules(equations.__path__), key=lambda info: info.name)
    ]


def page() -> str:
    """Return the page as it should be."""
    parts = [_HEAD]
    for module in modules():
        parts.append(f"## {inspect.getdoc(module)}\n")
        for name, thing in equations_of(module):
            text = _LABELS.sub(r"**\1\2:**", inspect.getdoc(thing) or "")
            parameters = ", ".join(inspect.signature(thing).parameters)
            parts.append(f"### `{name}({parameters})`\n\n{_escaped(text)}\n")
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism of a paper: where it is, what tests it, whether a cluster runs it."""

    where: str  # "[Paper] section, equation"
    what: str
    file: str
    symbol: str  # empty: the module
    test: str  # "FILE NAME"
    live: bool
    deviation: str  # or the reason why it is not live
    clause: str = ""  # of `tandem`, that it belongs to

    @property
    def papers(self) -> list[str]:
        """The papers that it is named with."""
        return [name for name in PAPERS if f"[{name}]" in self.where]


class BadTagError(ValueError):
    """A tag does not have the form that this module's docstring gives."""


def mechanisms() -> list[Mechanism]:
    """Return all tagged mechanisms, by file; raises BadTagError."""
    found = []
    for folder in _TAGGED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            for match in _TAG.finditer(text):
                symbol = _SYMBOL.match(text, match.end())
                file = path.relative_to(ROOT).as_posix()
                found.append(_mechanism(match[0], file, symbol[1] if symbol else ""))
    return found


def _mechanism(tag: str, file: str, symbol: str) -> Mechanism:
    line = " ".join(part.removeprefix("#").strip() for part in tag.splitlines())
    where, what, *rest = (part.strip() for part in line.removeprefix("Paper: ").split(" | "))
    said = dict(part.split(": ", 1) for part in rest)
    if not {"test", "live"} <= said.keys() or said["live"] not in ("yes", "no"):
        raise BadTagError(f"{file}: {line!r}")
    why = said.get("deviation", said.get("reason", ""))
    clause = said.get("ablation", "")
    if clause and clause not in CLAUSES:
        raise BadTagError(f"{file}: no clause {clause!r} in studies/profiles/ablation.py")
    return Mechanism(where, what, file, symbol, said["test"], said["live"] == "yes", why, clause)


def papers_page() -> str:
    """Return docs/evidence/papers.md as it should be."""
    parts = [_PAPERS_HEAD]
    tagged = mechanisms()
    for name, of in PAPERS.items():
        rows = sorted(
            (m for m in tagged if name in m.papers),
            key=lambda m: m.where[m.where.index(f"[{name}]") :],
        )
        table = [
            [
                m.where, m.what, f"`{m.file}`" + (f" `{m.symbol}`" if m.symbol else ""),
                f"`{m.test}`", "yes" if m.live else "no", acts(m.clause), m.deviation or "-",
            ]
            for m in rows
        ]  # fmt: skip
        columns = [
            "where", "mechanism", "file", "test", "live", "acts in `tandem`",
            "deviation, or why not live",
        ]  # fmt: skip
        parts.append(f"## {name} ({of})\n\n{markdown(columns, table)}\n")
    return "\n".join(parts)


def acts(clause: str) -> str:
    """Return how much a clause of `tandem` decides, as studies/profiles/ablation.json has it."""
    if not clause:
        return "-"
    kept = json.loads(ABLATION.read_text())
    boards = kept["boards"][clause]
    traces = [share for share in (of[clause] for of in kept["traces"].values()) if share >= 0.01]
    return f"{clause}: {boards:.1%} of decisions, {len(traces)} of {len(kept['traces'])} traces"


def _escaped(text: str) -> str:
    """Keep `a * b` and `<x>` of a formula from being read as markup."""
    return text.replace(" * ", " \\* ").replace("<", "&lt;")


if __name__ == "__main__":
    keep_current(__doc__, {PAGE: page(), PAPERS_PAGE: papers_page()})
