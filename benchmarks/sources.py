"""Which code a page of figures was made with, and which pages have become older than their code.

    python -m benchmarks.sources        # names the pages whose code has changed since

A page that `benchmarks.pages` writes has a digest of the sources of its command: the module, all
that it imports of this repository, and the data files next to these (profiles, models, C). Neither
comments and docstrings nor the layout of the code count.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "evidence" / "results"
#: What decides: the services and the policies, and what measures them.
PACKAGES = ("tandem", "scheduler_extender", "predictor", "node_agent", "benchmarks", "studies")
#: Data next to the modules of these count; those of studies are their own results.
_WITH_DATA = PACKAGES[:4]
_DATA = {".c", ".h", ".yaml", ".toml", ".json", ".ubj", ".csv"}
#: What writes pages decides no figure.
_WRITERS = {"benchmarks.pages", "benchmarks.sources"}
_MODULE = re.compile(r"Written by `python -m ([\w.]+)")
_SAID = re.compile(r"sources ([0-9a-f]{12})\b")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def digest(module: str, packages: Sequence[str] = PACKAGES) -> str:
    """Return twelve hexadecimal digits for the sources of a module and of all that it imports."""
    graph = _graph(tuple(packages))
    name = f"{module}.__main__" if f"{module}.__main__" in graph.modules else module
    modules = {name, *graph.find_upstream_modules(name)} - _WRITERS
    parts = []
    for path in set(_files(modules)):
        if path.suffix == ".py":
            parts += _definitions(path.read_text())
        else:
            parts.append(f"{path.name}\0{path.read_bytes().hex()}")
    return hashlib.sha256("\0".join(sorted(parts)).encode()).hexdigest()[:12]


@cache
def _graph(packages: tuple[str, ...]) -> grimp.ImportGraph:
    return grimp.build_graph(*packages, cache_dir=None)


def _files(modules: set[str]) -> Iterator[Path]:
    folders = set()
    for module in modules:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None, f"{module} has no file"
        path = Path(spec.origin)
        yield path
        if module.split(".")[0] in _WITH_DATA:
            folders.add(path.parent)
    for folder in folders:
        without_code = [sub for sub in folder.iterdir() if sub.is_dir() and _has_no_code(sub)]
        for each in (folder, *without_code):
            yield from (path for path in each.iterdir() if path.suffix in _DATA)


def _has_no_code(folder: Path) -> bool:
    return folder.name != "__pycache__" and not any(folder.rglob("*.py"))


class _WithoutImports(ast.NodeTransformer):
    """Takes the imports out of a syntax tree."""

    def visit_Import(self, node: ast.Import) -> None: ...

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...


def _definitions(text: str) -> list[str]:
    """Return the statements of a module as syntax trees, without docstrings and imports."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    left = _WithoutImports().visit(tree).body
    # All that is left of `if TYPE_CHECKING:` is an empty block.
    return [ast.dump(each) for each in left if not isinstance(each, ast.If) or each.body]


def older_than_their_code(
    pages: Path = PAGES, packages: Sequence[str] = PACKAGES
) -> list[tuple[str, str]]:
    """Return pages (file names) and modules: those whose code is not what the page says.

    A page whose module is gone is among them.
    """
    found = []
    for page in sorted(pages.glob("*.md")):
        text = page.read_text()
        module, said = _MODULE.search(text), _SAID.search(text)
        if module and said:
            gone = module[1] not in _graph(tuple(packages)).modules
            if gone or digest(module[1], packages) != said[1]:
                found.append((page.name, module[1]))
    return found


def main() -> None:
    """Name the pages; they are no error."""
    for page, module in older_than_their_code():
        print(f"docs/evidence/results/{page} is older than its code: python -m {module}")


if __name__ == "__main__":
    main()
