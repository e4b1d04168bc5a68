"""`tandem controlplane`: the commands of the package `controlplane`, which the wheel lacks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Never

import typer
from typer.core import TyperGroup

from tandem.errors import TandemError


class Absent(TyperGroup):
    """The commands of the control plane where the source tree is not there."""

    def resolve_command(self, *_: object) -> Never:
        """Refuse every command."""
        raise TandemError(
            "the control plane is part of the source tree, not of the installed package",
            hint="Run this command in a checkout of the repository, after `make setup`.",
        )


if find_spec("controlplane") is not None:
    from controlplane.cli import app
else:
    app = typer.Typer(cls=Absent, help="A real Kubernetes control plane.", no_args_is_help=True)
