"""Write docs/equations.md from the docstrings of the equations.

python -m benchmarks.equations_doc --write    # or without --write: say whether it is current
"""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tandem.policy import equations

PAGE = Path(__file__).parents[1] / "docs" / "equations.md"
_LABELS = re.compile(r"\b(Symbols|Shapes|Worked|Source|Differs)\b([^:.]{0,60}):")
_HEAD = """# Equations

What the policies calculate with. Each is a function of arrays in `tandem/policy/equations/`,
checked against its worked number and against a slow, obvious twin on random input. The papers'
letters collide with one another, so they stay on this page; configuration and metrics use the names
of the arguments.

Written by `python -m benchmarks.equations_doc --write` from the docstrings.

Papers: [Horus] Yeung et al., TPDS 2021. [Tiresias] Gu et al., NSDI 2019. [OJPP] Li et al., JPDC
2024. [SJF-BSBF] Luo et al., 2024. [Xonar], 2022.
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


def _escaped(text: str) -> str:
    """Keep `a * b` and `<x>` of a formula from being read as markup."""
    return text.replace(" * ", " \\* ").replace("<", "&lt;")


def main() -> None:
    """Write the page, or fail where it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        raise SystemExit(f"{PAGE} is out of date: python -m benchmarks.equations_doc --write")


if __name__ == "__main__":
    main()
