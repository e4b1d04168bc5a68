"""docs/evidence/promises.md: each promise stands in its page, and its tests are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("security.md", "queueing.md", "extender.md", "learning.md", "node-agent.md")
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[str, str, str]]:
    """The page, the promise and the tests of each row of the tables."""
    found, page = [], ""
    for line in (DOCS / "evidence" / "promises.md").read_text().splitlines():
        if line.startswith("## "):
            page = line.removeprefix("## [").partition("]")[0]
        elif page and line.startswith("| ") and not line.startswith("| promise"):
            promise, tests = line.removeprefix("| ").removesuffix(" |").rsplit(" | ", 1)
            # A link of the quotation leads from here to where the page has it from its folder.
            found.append((page, promise.replace("](../", "]("), tests))
    return found


@cache
def words(page: str) -> str:
    return " ".join((DOCS / page).read_text().split())


@cache
def named_in(file: str) -> frozenset[str]:
    path = ROOT / "tests" / file
    names = re.findall(r"^(?:async )?def (test_\w+)|^(Test\w+) =", path.read_text(), re.MULTILINE)
    return frozenset(name for pair in names for name in pair if name)


@pytest.mark.parametrize("page", PAGES)
def test_each_page_has_its_promises_listed(page: str) -> None:
    assert [row for row in rows() if row[0] == page]


def test_each_promise_stands_in_its_page() -> None:
    gone = [(page, promise) for page, promise, _ in rows() if promise not in words(page)]
    assert not gone, "change docs/evidence/promises.md, and the tests with it"


def test_each_promise_has_a_test_that_is_there() -> None:
    for page, promise, tests in rows():
        named = _TEST.findall(tests)
        assert named, f"no test: {page}: {promise}"
        for file, name in named:
            assert name in named_in(file), f"{file} has no {name}: {page}: {promise}"


def test_no_promise_is_listed_twice() -> None:
    listed = [(page, promise) for page, promise, _ in rows()]
    assert len(listed) == len(set(listed))
