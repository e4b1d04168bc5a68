"""`tandem profile collect`: the collector as a command of the package."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure what training jobs use of this machine's GPU.")


@app.callback()
def profile() -> None:
    """Measure what training jobs use of this machine's GPU."""


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def collect(context: typer.Context) -> None:
    """Run models alone and in pairs on the GPU, into a file for `tandem train`; see --help."""
    from predictor.collect.__main__ import main

    raise typer.Exit(main(context.args))
