"""The `tandem` command: gathers the commands that each package contributes."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points, version

import typer
from rich.markup import escape

from tandem.cli.output import clean_lines, err
from tandem.errors import TandemError, UsageError
from tandem.kube.errors import KubeError

ENTRY_POINTS = "tandem.commands"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tandem {version('tandem-gpu')}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """Return the whole command tree. A Typer app becomes a group, a function a command."""
    app = typer.Typer(
        name="tandem",
        help="Share GPUs between training jobs on Kubernetes where it is safe.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def root(
        show_version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ) -> None:
        """Share GPUs between training jobs on Kubernetes where it is safe."""

    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda e: e.name):
        command = entry.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name)
        else:
            app.command(name=entry.name)(command)
    return app


def kubectl() -> None:
    """Run as the kubectl plugin: the same commands, under another name."""
    main("kubectl tandem")


def main(program: str | None = None) -> None:
    """Run the command line; exit codes: 0, 1 (failed), 2 (usage)."""
    try:
        # krew's plugin starts `tandem` and says by what name the user knows it.
        build_app()(prog_name=program or os.environ.get("TANDEM_PROGRAM") or None)
    except TandemError as error:
        err.print(
            f"[red]error:[/red] {escape(clean_lines(error.message))}",
            highlight=False,
            soft_wrap=True,
        )
        if error.hint:
            err.print(f"  {escape(clean_lines(error.hint))}", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KubeError as error:
        words = f"the API server refuses, or does not answer: {error.message}"
        err.print(
            f"[red]error:[/red] {escape(clean_lines(words))}", highlight=False, soft_wrap=True
        )
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written
        where = f"{error.filename}: " if error.filename else ""
        said = clean_lines(where + (error.strerror or str(error)))
        err.print(f"[red]error:[/red] {escape(said)}", highlight=False, soft_wrap=True)
        sys.exit(1)
