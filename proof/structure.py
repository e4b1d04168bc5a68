"""`python -m proof.structure [COMMIT ...]`: size and structure of the product code, by commit.

Computed from the files alone: lines and files of each package, cyclomatic complexity (as
ruff counts it), the most arguments of a function, imports between the packages of the
extender and the pairs that import each other, settings, and terms of the glossary. Without
COMMIT, the working tree.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("tandem", "tandem_demo", "scheduler_extender", "node_agent", "predictor")
PAGES = ("docs/glossary.md",)
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Files = Mapping[str, str]  # path -> text


def of_commit(commit: str) -> Files:
    """Return the files of a commit."""
    names = ["archive", commit, *PACKAGES]
    packed = subprocess.run(["git", *names], cwd=ROOT, capture_output=True, check=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            data = tar.extractfile(member) if member.name.endswith(".py") else None
            if data is not None:
                found[member.name] = data.read().decode()
    for page in PAGES:
        shown = subprocess.run(["git", "show", f"{commit}:{page}"], cwd=ROOT, capture_output=True,
                               check=False)  # fmt: skip
        found[page] = shown.stdout.decode()
    return found


def of_tree() -> Files:
    """Return the files of the working tree."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    paths += [ROOT / page for page in PAGES if (ROOT / page).exists()]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a module, methods included; an inner one counts for its outer one."""
    nodes: list[ast.AST] = list(tree.body)
    for node in nodes:
        if isinstance(node, _FUNCTIONS):
            yield node
        elif isinstance(node, ast.ClassDef):
            nodes.extend(node.body)


def complexity(function: ast.AST) -> int:
    """Return the cyclomatic complexity of a function as ruff counts it (C901)."""
    inner = [node for node in ast.walk(function) if isinstance(node, (*_BRANCHES, *_FUNCTIONS))]
    return len(inner)  # the function itself is one of them


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many arguments a function has, without self."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def settings(trees: Mapping[str, ast.Module]) -> int:
    """Count the fields of the classes of the modules called config.py."""
    return sum(
        isinstance(part, ast.AnnAssign)
        for path, tree in trees.items()
        if path.endswith("config.py")
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.bases
        for part in node.body
    )


def imports(trees: Mapping[str, ast.Module]) -> Counter[tuple[str, str]]:
    """Count the imports of names between the packages of the extender."""
    found: Counter[tuple[str, str]] = Counter()
    for path, tree in trees.items():
        parts = path.split("/")
        if parts[0] != "scheduler_extender" or len(parts) < 3:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            to = node.module.split(".")
            if to[0] == parts[0] and len(to) > 1 and f"{to[0]}/{to[1]}/__init__.py" in trees:
                found[parts[1], to[1]] += parts[1] != to[1]
    return +found


def measures(files: Files) -> dict[str, str]:
    """Return each measure by its name."""
    code = {path: text for path, text in files.items() if path.endswith(".py")}
    trees = {path: ast.parse(text) for path, text in code.items()}
    found: dict[str, str] = {}
    for package in ("", *PACKAGES):
        lines = [len(text.splitlines()) for path, text in code.items()
                 if path.startswith(f"{package}/" if package else "")]  # fmt: skip
        found[f"lines (files): {package or 'all'}"] = f"{sum(lines):,} ({len(lines)})"
    for path in sorted({"/".join(p.split("/")[:2]) for p in code if p.count("/") > 1}):
        if path.startswith("scheduler_extender/"):
            lines = [len(t.splitlines()) for p, t in code.items() if p.startswith(f"{path}/")]
            found[f"lines (files): {path}"] = f"{sum(lines):,} ({len(lines)})"
    every = [(f, path) for path, tree in trees.items() for f in functions(tree)]
    scores = [(complexity(function), path, function.name) for function, path in every]
    found["complexity: mean"] = f"{mean(score for score, _, _ in scores):.2f}"
    worst = max(scores)
    found["complexity: worst"] = f"{worst[0]} ({worst[1]}: {worst[2]})"
    found["complexity: functions over 15"] = str(sum(score > 15 for score, _, _ in scores))
    made = [(arguments(f), path) for f, path in every if f.name == "__init__"]
    most = max(made)
    found["constructor with most arguments"] = f"{most[0]} ({most[1]})"
    found["constructors with more than 8"] = str(sum(count > 8 for count, _ in made))
    between = imports(trees)
    found["imports between the extender's packages"] = str(between.total())
    both = sorted(f"{a} <-> {b}" for a, b in between if a < b and (b, a) in between)
    found["pairs of packages that import each other"] = ", ".join(both) or "none"
    found["settings"] = str(settings(trees))
    terms = re.findall(r"^\| (?!term|---)", files.get(PAGES[0], ""), re.M)
    found["terms of the glossary"] = str(len(terms))
    return found


def main() -> None:
    """Print one column for each commit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs="*")
    commits = parser.parse_args().commits
    columns = {commit: measures(of_commit(commit)) for commit in commits}
    if not commits:
        columns["working tree"] = measures(of_tree())
    rows = dict.fromkeys(name for column in columns.values() for name in column)
    print("| measure |", " | ".join(columns), "|")
    print("|---|" + "---|" * len(columns))
    for name in rows:
        print(f"| {name} |", " | ".join(each.get(name, "-") for each in columns.values()), "|")


if __name__ == "__main__":
    main()
