"""The pages of the papers name every figure and table of the texts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pages import FOLDER
from studies.papers.evaluation import FIGURES, evaluation, page_of
from tandem.policy.equations.tiresias import tensor_skew

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


@pytest.mark.parametrize(
    ("model", "largest", "parameters", "printed"),
    [
        # The first fully connected layer: 7 x 7 x 512 x 4096, and 6 x 6 x 256 x 4096.
        ("VGG19", 102_760_448, 143_667_240, 0.715),
        ("VGG16", 102_760_448, 138_357_544, 0.743),
        ("VGG11", 102_760_448, 132_863_336, 0.773),
        ("AlexNet", 37_748_736, 61_100_840, 0.61),
        # A convolution: 3 x 3 x 512 x 512.
        ("ResNet152", 2_359_296, 60_192_808, 0.039),
        ("ResNet101", 2_359_296, 44_549_160, 0.053),
        ("ResNet50", 2_359_296, 25_557_032, 0.092),
        # The classifier: 1536, 2048 and 1024 x 1000.
        ("Inception4", 1_536_000, 42_679_816, 0.036),
        ("Inception3", 2_048_000, 23_834_568, 0.086),
        ("GoogLeNet", 1_024_000, 6_998_552, 0.146),
    ],
)
def test_the_skews_of_tiresias_table_6_are_those_of_the_models_tensors(
    model: str, largest: int, parameters: int, printed: float
) -> None:
    skew = tensor_skew(np.array([float(largest)]), np.array([float(parameters)]))
    # The paper cuts off AlexNet's 0.618 after two digits.
    assert skew[0] == pytest.approx(printed, abs=0.01 if model == "AlexNet" else 6e-4)
