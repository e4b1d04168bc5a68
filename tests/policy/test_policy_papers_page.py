"""docs/evidence/papers.md: every mechanism of the papers, each with a file, a test and a reason."""

from __future__ import annotations

import re

import pytest

from studies import equations_doc
from studies.equations_doc import ROOT, BadTagError, Mechanism, mechanisms

ALL = mechanisms()
#: What a reader of each paper looks for: equations, algorithms and sections.
EXPECTED = {
    "Tiresias": [
        "3.2.1", "3.2.2", "3.2.3", "Pseudocode 2", "3.3.1", "3.3.2", "5.2.4", "Table 6", "App. D",
    ],
    "Horus": [
        "4.2.2", "4.2.3", "4.3", "Eq. (1)", "Eq. (2)", "Eq. (5)", "Eq. (7)", "Eq. (9)", "Alg. 1",
        "Table 3", "Table 4",
    ],
    "OJPP": [
        "Eq. (1)", "Eq. (3)", "Eq. (4)", "Eq. (5)", "Eq. (6)", "Eq. (8)", "Alg. 1, 2", "Alg. 3",
        "Alg. 4", "4.5", "Eq. (18)", "Eq. (20)",
    ],
    "SJF-BSBF": [
        "Eq. (3)", "Eq. (4)", "Eq. (5)", "Eq. (3), (7)", "Theorem 1", "Alg. 1", "Alg. 2",
    ],
    "Xonar": ["III-A", "III-B", "Eq. (1)"],
}  # fmt: skip


def test_the_page_is_current() -> None:
    assert equations_doc.PAPERS_PAGE.read_text() == equations_doc.papers_page(), (
        "python -m studies.equations_doc --write"
    )


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.file}-{one.symbol}-{one.where}")
def test_a_mechanism_has_a_test_that_exists_and_a_reason_where_it_is_not_live(
    one: Mechanism,
) -> None:
    assert one.papers, one.where
    file, _, name = one.test.partition(" ")
    assert re.search(rf"^(async )?def {name}\b", (ROOT / file).read_text(), re.MULTILINE), one.test
    if one.symbol:
        assert re.search(
            rf"^(class|def) {one.symbol}\b", (ROOT / one.file).read_text(), re.MULTILINE
        )
    assert one.live or len(one.deviation.split()) >= 8, f"no reason: {one.what}"


@pytest.mark.parametrize("paper", EXPECTED)
def test_no_mechanism_of_a_paper_is_missing(paper: str) -> None:
    where = " ; ".join(m.where[m.where.index(f"[{paper}]") :] for m in ALL if paper in m.papers)
    missing = [one for one in EXPECTED[paper] if one not in where]
    assert not missing


def test_a_tag_without_a_test_is_refused() -> None:
    with pytest.raises(BadTagError):
        equations_doc._mechanism("# Paper: [Horus] Eq. (1) | slowdown | live: yes\n", "x.py", "")


def test_the_pages_of_the_results_that_are_named_exist() -> None:
    text = equations_doc.PAPERS_PAGE.read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (equations_doc.PAPERS_PAGE.parent / link).exists(), link
