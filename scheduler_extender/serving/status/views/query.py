"""What a view is asked for, and the page of a list that answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

PAGE_ROWS = 100
_LONGEST_PARAMETER = 253

Document = dict[str, Any]


Row = TypeVar("Row")
_Given = TypeVar("_Given", covariant=True)


class Listed(Protocol[_Given]):
    """A list of which one page is looked at."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice, /) -> Iterable[_Given]: ...


class MissingError(Exception):
    """There is no such object, or the reader does not see it."""


class BadQueryError(ValueError):
    """A parameter is not understood; the text says which values are."""


@dataclass(frozen=True, slots=True)
class Query:
    """A view, the names in its path, and its parameters in the order of their names."""

    view: str
    names: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """Return a parameter, '' where it is not given."""
        return dict(self.parameters).get(name, "")

    @property
    def page(self) -> int:
        """The page of a list, 1 first."""
        text = self.get("page") or "1"
        if not (text.isascii() and text.isdigit()) or int(text[:7]) < 1:
            raise BadQueryError("page: a number from 1 on")
        return int(text[:7])


#: The parameters that each view understands; others are left out of its query.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "overview": ("namespace",),
    "nodes": ("namespace", "page", "q", "state"),
    "node": (),
    "gpus": ("job", "model", "namespace", "node", "page", "q", "sort", "state"),
    "gpu": (),
    "jobs": (
        "gpu",
        "model",
        "namespace",
        "node",
        "page",
        "phase",
        "q",
        "reason",
        "sharing",
        "sort",
    ),
    "job": (),
    "models": ("namespace", "page", "q"),
    "model": (),
}


def query_of(view: str, names: Iterable[str], given: Iterable[tuple[str, str]]) -> Query:
    """Return the query of a request.

    Raises:
        BadQueryError: a parameter is too long.
    """
    known = PARAMETERS[view]
    found = {name: value for name, value in given if name in known and value}
    for name, value in found.items():
        if len(value) > _LONGEST_PARAMETER:
            raise BadQueryError(f"{name}: at most {_LONGEST_PARAMETER} characters")
    return Query(view, tuple(names), tuple(sorted(found.items())))


def page_of(
    query: Query, found: Listed[Row], row: Callable[[Row], Document], total: int | None = None
) -> Document:
    """Return one page of what was found; a page beyond the last one is empty.

    `total` is given where `found` ends with the page.
    """
    first = (query.page - 1) * PAGE_ROWS
    total = len(found) if total is None else total
    return {
        "total": total,
        "page": query.page,
        "pages": max(1, -(-total // PAGE_ROWS)),
        "rows": [row(each) for each in found[first : first + PAGE_ROWS]],
    }
