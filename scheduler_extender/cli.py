"""`tandem config`: the extender's configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.forms import Form, reports
from tandem.cli.output import out, print_json

config_app = typer.Typer(help="The extender's configuration.", no_args_is_help=True)


@config_app.callback()
def _config() -> None:
    """Group the commands, though there is but one so far."""


@config_app.command("check")
@reports
def check_config(
    file: Annotated[Path, typer.Argument(help="A YAML file.")], form: Form = Form.TABLE
) -> None:
    """Say what is wrong in a configuration file, by path; exit code 1 if anything is."""
    from scheduler_extender.config import read_config

    config = read_config(file)
    if form is Form.JSON:
        print_json({"file": str(file), "profile": config.profile.name})
        return
    out.print(f"{file}: fine (profile {config.profile.name})", highlight=False)
