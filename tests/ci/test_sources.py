"""The digest of the code that a page of figures was made with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from benchmarks import sources
from benchmarks.pages import made_by
from benchmarks.sources import digest, older_than_their_code

_NAMES = count()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a package whose module `study` imports `policy`, and `other` nothing."""
    folder = tmp_path / f"made_up_{next(_NAMES)}"
    folder.mkdir()
    for name, text in {
        "__init__": "",
        "policy": 'LIMIT = 2\ndef f() -> int:\n    """Say so."""\n    return LIMIT\n',
        "study": f"from {folder.name} import policy\nprint(policy.f())\n",
        "other": "A = 1\n",
    }.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "_WITH_DATA", (folder.name,))
    yield folder
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def of(folder: Path) -> str:
    sources._graph.cache_clear()
    return digest(f"{folder.name}.study", (folder.name,))


def test_what_a_module_imports_counts_and_what_it_does_not_import_does_not(package: Path) -> None:
    before = of(package)
    (package / "other.py").write_text("A = 2\n")
    assert of(package) == before
    (package / "policy.py").write_text("LIMIT = 3\ndef f() -> int:\n    return LIMIT\n")
    assert of(package) != before


def test_words_and_layout_do_not_count(package: Path) -> None:
    before = of(package)
    (package / "policy.py").write_text(
        '"""A docstring."""\n# A comment.\nLIMIT = (\n    2\n)\n\n\n'
        'def f() -> int:\n    """Say another thing."""\n    return LIMIT\n'
    )
    assert of(package) == before


def test_a_definition_may_move_to_another_module(package: Path) -> None:
    before = of(package)
    (package / "limits.py").write_text("LIMIT = 2\n")
    text = f"from {package.name}.limits import LIMIT\ndef f() -> int:\n    return LIMIT\n"
    (package / "policy.py").write_text(text)
    assert of(package) == before
    (package / "limits.py").write_text("LIMIT = 3\n")
    assert of(package) != before


def test_profiles_next_to_the_code_count(package: Path) -> None:
    before = of(package)
    (package / "profiles").mkdir()
    (package / "profiles" / "tandem.yaml").write_text("order: {}\n")
    assert of(package) != before


def test_a_page_is_named_once_its_code_has_changed(package: Path, tmp_path: Path) -> None:
    module, pages = f"{package.name}.study", tmp_path / "pages"
    pages.mkdir()
    said = f"Written by `python -m {module} --seeds 5`; seeds 0 to 4; sources {of(package)}; Linux."
    (pages / "figures.md").write_text(f"# Figures\n\n{said}\n")
    (pages / "by-hand.md").write_text("# Words\n")
    assert older_than_their_code(pages, (package.name,)) == []
    (package / "policy.py").write_text("LIMIT = 3\ndef f() -> int:\n    return LIMIT\n")
    sources._graph.cache_clear()
    assert older_than_their_code(pages, (package.name,)) == [("figures.md", module)]


def test_a_page_is_named_once_its_code_is_gone(package: Path, tmp_path: Path) -> None:
    module, pages = f"{package.name}.gone", tmp_path / "pages"
    pages.mkdir()
    said = f"Written by `python -m {module}`; seeds 0 to 4; sources {'0' * 12}; Linux."
    (pages / "figures.md").write_text(said)
    sources._graph.cache_clear()
    assert older_than_their_code(pages, (package.name,)) == [("figures.md", module)]


def test_a_written_page_says_its_sources() -> None:
    line = made_by("python -m studies.profiles.racks --seeds 5 --jobs 400", "seeds 0 to 4")
    assert f"sources {digest('studies.profiles.racks')};" in line
