"""No two packages import each other, directly or by way of others."""

from __future__ import annotations

import ast
from graphlib import CycleError
from pathlib import Path

import pytest

from proof.structure import (
    imports,
    in_order,
    nearly_in_order,
    of_tree,
    picture,
    without_tests,
)

FILES = {
    "a/__init__.py": "",
    "a/low/__init__.py": "",
    "a/low/one.py": "import json\nimport a.settings\n",
    "a/settings.py": "",
    "a/high/__init__.py": "",
    "a/high/two.py": "from a.low.one import x, y\nfrom a.low import one\n",
    "a/main.py": "from a import high, settings\n",
}


def _imports(**more: str) -> dict[tuple[str, str], int]:
    files = FILES | {f"{path.replace('__', '/')}.py": code for path, code in more.items()}
    return imports({path: ast.parse(code) for path, code in files.items()})


def test_imports_between_packages_are_counted() -> None:
    assert _imports() == {("a.high", "a.low"): 2, ("a.low", "a"): 1, ("a", "a.high"): 1}


def test_a_package_comes_after_those_that_it_imports() -> None:
    order = in_order(_imports())
    assert order.index("a.low") < order.index("a.high")


def test_a_circle_is_an_error_that_names_the_packages() -> None:
    with pytest.raises(CycleError, match=r"a\.low"):
        in_order(_imports(a__low__three="from a.high import two"))


def test_a_picture_of_circles_has_their_rarest_imports_on_the_wrong_side() -> None:
    order = nearly_in_order(_imports(a__low__three="from a.high import two"))
    assert order.index("a.low") < order.index("a.high"), "two imports against one"


@pytest.mark.long
def test_the_picture_is_drawn_and_equal_code_gives_equal_files(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        picture(_imports(), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.slow
def test_the_packages_of_the_repository_have_an_order() -> None:
    order = in_order(imports(without_tests(of_tree())))
    assert order.index("tandem.policy") < order.index("scheduler_extender.queue")
    assert order.index("benchmarks") < order.index("proof") < order.index("studies")
