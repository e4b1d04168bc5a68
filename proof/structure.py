"""Size and structure of the code, by commit.

    python -m proof.structure [COMMIT ...]      # a table with a column for each commit
    python -m proof.structure --picture FILE [COMMIT]

Computed from the files alone: lines and files of each package, and, of the product,
cyclomatic complexity (as ruff counts it), the most arguments of a function, imports between the
packages of the extender and the pairs that import each other, settings, and terms of the glossary.
The picture shows which package imports which. Without COMMIT, the working tree.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from statistics import mean

from benchmarks.tables import markdown

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("tandem", "tandem_demo", "scheduler_extender", "node_agent", "predictor")
PACKAGES = (*PRODUCT, "controlplane", "benchmarks", "proof", "studies", "tests")
PAGES = ("docs/glossary.md",)
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Files = Mapping[str, str]  # path -> text


def of_commit(commit: str) -> Files:
    """Return the files of a commit."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True,
                            check=True).stdout  # fmt: skip
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            ours = member.name.endswith(".py") and member.name.split("/")[0] in PACKAGES
            data = tar.extractfile(member) if ours else None
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


def package_of(module: str, packages: Collection[str], depth: int = 2) -> str:
    """Return the package that a module is in, of at most so many names."""
    names = module.split(".")[:depth]
    while names and ".".join(names) not in packages:
        names.pop()
    return ".".join(names)


def imports(trees: Mapping[str, ast.Module]) -> Counter[tuple[str, str]]:
    """Count the imports of names between packages, (importing, imported)."""
    packages = {str(Path(path).parent).replace("/", ".") for path in trees}
    found: Counter[tuple[str, str]] = Counter()
    for path, tree in trees.items():
        here = package_of(path.removesuffix(".py").replace("/", "."), packages)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = {f"{node.module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Import):
                modules = {each.name for each in node.names}
            else:
                continue
            for there in {package_of(module, packages) for module in modules} - {"", here}:
                found[here, there] += 1
    return found


def without_tests(files: Files) -> dict[str, ast.Module]:
    """Return the modules outside tests/, parsed."""
    return {
        path: ast.parse(text)
        for path, text in files.items()
        if path.endswith(".py") and not path.startswith("tests/")
    }


def is_part(one: str, other: str) -> bool:
    """Return whether one of two packages contains the other."""
    return one.startswith(f"{other}.") or other.startswith(f"{one}.")


def in_order(between: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the packages, each after those that it imports.

    A package and the one that contains it may import each other: modules next to packages are the
    settings that all of them read, and the program that starts them.

    Raises:
        graphlib.CycleError: there is no such order, with the packages of a circle.
    """
    needs: dict[str, set[str]] = {name: set() for pair in between for name in pair}
    for importing, imported in between:
        if not is_part(importing, imported):
            needs[importing].add(imported)
    order = TopologicalSorter({name: sorted(needs[name]) for name in sorted(needs)})
    return list(order.static_order())


def nearly_in_order(between: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the same where packages are in circles: the rarest import of each does not count."""
    left = dict(between)
    while True:
        try:
            return in_order(left)
        except CycleError as error:
            # graphlib names each package before one that imports it.
            circle = {(b, a) for a, b in pairwise(error.args[1])}
            del left[min(sorted(circle), key=left.__getitem__)]


def picture(between: Mapping[tuple[str, str], int], path: Path) -> None:
    """Draw a matrix: a row for each package, a column for each that it imports, in one order.

    An import of a later package is right of the diagonal, and red: it closes a circle. Between a
    package and the one that contains it, cells are grey.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tandem"
    from matplotlib import pyplot as plt

    names = nearly_in_order(between)
    place = {name: at for at, name in enumerate(names)}
    size = 2.5 + 0.22 * len(names)
    figure, axes = plt.subplots(figsize=(size, size))
    for (importing, imported), count in sorted(between.items()):
        grey = is_part(importing, imported)
        y, x = place[importing], place[imported]
        color = "0.85" if grey else "C3" if x > y else "C0"
        axes.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, color=color))
        axes.text(x, y, str(count), ha="center", va="center", fontsize=5)
    axes.plot([-0.5, len(names) - 0.5], [-0.5, len(names) - 0.5], color="0.5", linewidth=0.5)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5))
    axes.set_xlabel("is imported")
    axes.set_ylabel("imports, number of modules and names")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _sizes(code: Files) -> dict[str, str]:
    """Return lines and files of each package, and of the packages in it where it has some."""
    lines = {path: len(text.splitlines()) for path, text in code.items()}
    folders = {"/".join(path.split("/")[:depth]) for path in code for depth in (1, 2)}
    found = {}
    for folder in ("", *sorted(each for each in folders if not each.endswith(".py"))):
        own = [
            count for path, count in lines.items() if not folder or path.startswith(f"{folder}/")
        ]
        found[f"lines (files): {folder or 'all'}"] = f"{sum(own):,} ({len(own)})"
    return found


def measures(files: Files) -> dict[str, str]:
    """Return each measure by its name."""
    code = {path: text for path, text in files.items() if path.endswith(".py")}
    found = _sizes(code)
    code = {path: text for path, text in code.items() if path.split("/")[0] in PRODUCT}
    trees = {path: ast.parse(text) for path, text in code.items()}
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
    between = Counter({
        pair: count for pair, count in imports(trees).items()
        if all(name.startswith("scheduler_extender.") for name in pair)
    })  # fmt: skip
    found["imports between the extender's packages"] = str(between.total())
    both = sorted(f"{a} <-> {b}" for a, b in between if a < b and (b, a) in between)
    found["pairs of packages that import each other"] = ", ".join(both) or "none"
    found["settings"] = str(settings(trees))
    terms = re.findall(r"^\| (?!term|---)", files.get(PAGES[0], ""), re.M)
    found["terms of the glossary"] = str(len(terms))
    return found


def main() -> None:
    """Print one column for each commit, or draw the picture of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs="*")
    parser.add_argument("--picture", type=Path, help="draw which package imports which, as SVG")
    given = parser.parse_args()
    if given.picture:
        files = of_commit(given.commits[0]) if given.commits else of_tree()
        picture(imports(without_tests(files)), given.picture)
        return
    columns = {commit: measures(of_commit(commit)) for commit in given.commits}
    if not given.commits:
        columns["working tree"] = measures(of_tree())
    rows = dict.fromkeys(name for column in columns.values() for name in column)
    print(markdown(
        ["measure", *columns],
        [[name, *(each.get(name, "-") for each in columns.values())] for name in rows],
    ))  # fmt: skip


if __name__ == "__main__":
    main()
