"""What is predicted of a job, in words."""

from __future__ import annotations

from tandem.reasons.predicted import predicted_in_words


def test_each_figure_has_its_source() -> None:
    assert predicted_in_words(12.5, "formula", 96.4, "model") == (
        "12.5 GiB at most (formula), 96 % utilisation (model)"
    )


def test_what_nothing_is_known_of_has_no_figure() -> None:
    said = predicted_in_words(0.0, "whole-gpu", 100.0, "whole-gpu")
    assert "0.0" not in said
    assert said.startswith("the memory of a whole GPU")
    assert said.endswith("100 % utilisation (assumed)")
