"""The pages of the papers name every figure and table of the texts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchmarks.papers.evaluation import FIGURES, evaluation, page_of
from benchmarks.papers.page import FOLDER

TEXTS = Path(
    os.environ.get("TANDEM_SHARED_PAPERS", Path(__file__).parents[3] / "shared" / "papers")
)
ROMAN = {"I": "1", "II": "2", "III": "3", "IV": "4", "V": "5"}


def numbers(text: str) -> set[tuple[str, str]]:
    """Return the figures and tables that a text names: ("F", "3"), ("T", "4")."""
    found = set()
    for kind, listed in re.findall(
        r"\b(Fig|Table|TABLE)(?:ure|s|\.)*\.?\s+((?:\d+[a-c]?|[IV]+)\b(?:, \d+\b|, [IV]+\b)*)", text
    ):
        for one in listed.split(", "):
            digits = ROMAN.get(one) or one.rstrip("abc")
            found.add((kind[0], digits))
    return found


def test_the_reader_of_numbers_reads_lists_and_roman_numbers() -> None:
    assert numbers("Fig. 14, 15 and Table II, Fig. 4a") == {
        ("F", "14"), ("F", "15"), ("T", "2"), ("F", "4"),
    }  # fmt: skip
    assert numbers("Table III, IV; Figure 6:") == {("T", "3"), ("T", "4"), ("F", "6")}


@pytest.mark.parametrize("paper", FIGURES)
@pytest.mark.skipif(not TEXTS.is_dir(), reason="no texts of the papers")
def test_every_figure_and_table_of_the_text_has_a_row(paper: str) -> None:
    text = (TEXTS / f"{paper.lower()}.txt").read_text()
    captions = "\n".join(re.findall(r"^(?:Fig|Table|TABLE)\w*\.? .*", text, re.MULTILINE))
    named = numbers(" ; ".join(row[0] for row in FIGURES[paper]))
    wanted = {one for one in numbers(captions) if int(one[1]) < 30}
    assert len(wanted) > 3, "the captions were not found"
    assert wanted <= named, sorted(wanted - named)


@pytest.mark.parametrize("paper", FIGURES)
def test_a_page_shows_the_table_of_its_evaluation(paper: str) -> None:
    assert evaluation(paper) in page_of(paper).read_text()


@pytest.mark.parametrize("paper", FIGURES)
def test_a_row_says_whether_and_a_page_that_it_names_exists(paper: str) -> None:
    for _, _, reproduced, where in FIGURES[paper]:
        assert reproduced in {"yes", "in part", "no", "-"}
        assert where
        for page in re.findall(r"\]\(([\w./-]+\.md)\)", where):
            assert (FOLDER / page).is_file(), page
