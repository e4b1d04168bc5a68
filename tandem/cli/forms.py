"""In which form a command prints its answer: `-o wide | json | name`, and `--json`.

`lists` is for commands that list things, `shows` for those about one thing, and `reports` for the
rest, which have no names to print. Each gives its command the form as `form`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from tandem.cli.output import clean, endless, err, out, print_json, print_table


class Form(StrEnum):
    """The output format of an answer."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    NAME = "name"


class _OfLists(StrEnum):
    WIDE = "wide"
    JSON = "json"
    NAME = "name"


class _OfOne(StrEnum):
    JSON = "json"
    NAME = "name"


class _OfReports(StrEnum):
    JSON = "json"


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, as -o json does.")]


class Column(NamedTuple):
    """A column of a list: its head, and what it has of a row.

    A wide one is for `-o wide` alone. A repeated one has what another one has as well, and is left
    out on a terminal. The words of one that `may_break` are no names.
    """

    head: str
    of: Callable[[Any], object]
    wide: bool = False
    may_break: bool = False
    repeated: bool = False


def print_list(
    form: Form,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Any],
    name: Callable[[Any], str],
    empty: str,
) -> None:
    """Print rows as a table, or their names, a line each; `empty` where there are none.

    In a pipe that goes to stderr, since what reads on expects rows.
    """
    if not rows:
        (out if out.is_terminal else err).print(empty, highlight=False)
        return
    if form is Form.NAME:
        for row in rows:
            typer.echo(clean(name(row)))
        return
    all_of_them = form is Form.WIDE
    shown = [
        each
        for each in columns
        if all_of_them or not (each.wide or (each.repeated and not endless(out)))
    ]
    cells = [tuple(each.of(row) for each in shown) for row in rows]
    may_break = {each.head for each in shown if each.may_break}
    print_table(title, [each.head for each in shown], cells, may_break=may_break)


def printed(form: Form, name: str, document: object) -> bool:
    """Print the name of one thing or its JSON, where that is wanted; say whether it was."""
    if form is Form.NAME:
        typer.echo(clean(name))
    elif form is Form.JSON:
        print_json(document)
    return form in (Form.NAME, Form.JSON)


def _formed(
    choices: type[StrEnum], help_: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    # The type of the option is a value here, so that Typer offers and completes what fits.
    option: Any = Annotated[choices | None, typer.Option("--output", "-o", help=help_)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def formed(*args: Any, output: StrEnum | None, json: bool, **kwargs: Any) -> None:  # noqa: ANN401 - those of the command
            form = Form.JSON if json else Form(output.value) if output else Form.TABLE
            command(*args, form=form, **kwargs)

        given = inspect.signature(command, eval_str=True).parameters.values()
        kept = [each for each in given if each.name != "form"]
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter("output", keyword, default=None, annotation=option),
            inspect.Parameter("json", keyword, default=False, annotation=JsonOption),
        ]
        formed.__name__, formed.__doc__ = command.__name__, command.__doc__
        formed.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]
        formed.__annotations__ = {each.name: each.annotation for each in (*kept, *added)}
        return formed

    return decorate


lists = _formed(_OfLists, "wide: all columns. json. name: names alone, a line each.")
shows = _formed(_OfOne, "json, or name: the name alone.")
reports = _formed(_OfReports, "json.")
