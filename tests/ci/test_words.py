"""Comments, docstrings, messages, pages and names use no word of `words.toml`."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = tomllib.loads(Path(__file__).with_name("words.toml").read_text())
ALLOWED = tuple(entry["text"] for entry in LIST["allowed"])
COVERED = tuple(LIST["covers"])
#: What people write and read. Recorded results and lock files are not written by hand.
WRITTEN = {".py", ".md", ".c", ".h", ".js", ".css", ".html", ".toml", ".yaml", ".yml", ".tpl"}
#: The list itself, and the reasons for it.
_ABOUT = {"tests/ci/words.toml", "docs/decisions/0079-a-list-of-words.md"}
#: Between two words: a line break, the mark of a comment, the quotes of a string's next part.
_GAP = r"[\s#*/:\"']+(?:f[\"'])?"


def _pattern(form: str) -> str:
    return rf"(?<![a-z0-9]){_GAP.join(map(re.escape, form.split()))}(?![a-z0-9])"


def riddles(text: str) -> list[tuple[int, str]]:
    """Return the line and the listed form of each listed word in `text`; `ALLOWED` is left out."""
    for allowed in ALLOWED:
        text = text.replace(allowed, " " * len(allowed))
    found = [
        (text.count("\n", 0, match.start()) + 1, form)
        for entry in LIST["word"]
        for form in entry["forms"]
        for match in re.finditer(_pattern(form), text, re.IGNORECASE)
    ]
    return sorted(found)


def _written() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        path
        for path in listed.stdout.split("\0")
        if Path(path).suffix in WRITTEN and path not in _ABOUT
    ]


@pytest.mark.parametrize("covered", COVERED)
def test_no_listed_word_is_used(covered: str) -> None:
    paths = [path for path in _written() if path == covered or path.startswith(f"{covered}/")]
    assert paths, f"{covered} holds no file that is written by hand"
    found = [
        f"{path}:{line}: {form!r}"
        for path in paths
        for line, form in riddles((ROOT / path).read_text())
    ]
    assert found == [], "tests/ci/words.toml says what to write instead"


def test_words_are_found_in_prose_in_names_and_across_lines() -> None:
    listed = LIST["word"][0]["forms"][0]
    for text in (f"is {listed} of", f"was_{listed}_late", f"_{listed.title()}(x)", listed.upper()):
        assert riddles(f"\n{text}") == [(2, listed)], text
    assert riddles(f"s{listed} {listed}ed") == []
    two = next(form for entry in LIST["word"] for form in entry["forms"] if " " in form)
    one, other = two.split()
    for gap in ("\n    ", "\n    # ", '"\n    "', '"\n    f"', "\n * "):
        assert riddles(f"{one}{gap}{other}") == [(1, two)], repr(gap)


def test_every_word_has_a_reason_and_a_replacement_and_no_exception_is_left_over() -> None:
    assert all(entry["why"] and entry["instead"] for entry in LIST["word"])
    assert all(entry["why"] for entry in LIST["allowed"])
    texts = [(ROOT / path).read_text() for path in _written()]
    unused = [allowed for allowed in ALLOWED if not any(allowed in text for text in texts)]
    assert unused == [], "an exception that no file needs"
