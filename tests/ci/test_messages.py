"""docs/messages.md lists every text that the code hands to people, without terms of the code."""

from __future__ import annotations

import re

import pytest

from proof.messages import PAGE, ROOT, page, texts
from tandem.policy import catalog
from tandem.reasons.causes import Reason

#: Policies by the names of configuration files, where these are no words of English.
KINDS = {
    each.model_fields["kind"].default
    for union in (
        catalog.AnyConstraint, catalog.AnyScorer, catalog.AnyOrder, catalog.AnyDispatch,
        catalog.AnyAdjuster, catalog.AnyGather,
    )
    for each in union.__args__[0].__args__
}  # fmt: skip
TERMS = [
    r"\w\(s\)",  # a count has its noun
    r"\bdispatch\b",
    r"\battained service\b",
    r"\bGPU-[0-9a-f]{8}-",
    *(rf"\b{kind}\b" for kind in sorted(KINDS) if "_" in kind),
]


def test_the_page_is_what_the_code_says() -> None:
    before = PAGE.read_text()
    assert before == page(before), "python -m proof.messages --write"


def test_texts_of_each_package_are_found() -> None:
    found = texts()
    for package, least in (("tandem/cli", 150), ("scheduler_extender", 150), ("predictor", 50),
                           ("node_agent", 20)):  # fmt: skip
        assert sum(len(of) for file, of in found.items() if file.startswith(package)) >= least


@pytest.mark.parametrize("term", TERMS)
def test_no_text_has_a_term_of_the_code(term: str) -> None:
    bad = [f"{file}: {text}" for file, of in texts().items() for text in of
           if re.search(term, text)]  # fmt: skip
    assert not bad


def test_every_page_that_a_text_names_exists() -> None:
    named = {(path, file) for file, of in texts().items() for text in of
             for path in re.findall(r"\bdocs/[\w/-]+\.md\b", text)}  # fmt: skip
    assert named
    assert not [each for each in sorted(named) if not (ROOT / each[0]).exists()]


def test_reasons_are_no_texts() -> None:
    """Words of conditions are for programs; people read the sentences."""
    words = {reason.value for reason in Reason if sum(map(str.isupper, reason.value)) > 1}
    bad = [text for of in texts().values() for text in of if words & set(re.findall(r"\w+", text))]
    assert not bad
