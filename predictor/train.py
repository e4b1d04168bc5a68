"""`tandem train`: learn interference from measured pairs, or go back to the model before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.output import err, print_json, print_table
from tandem.errors import TandemError

OutOption = Annotated[
    Path, typer.Option("--out", help="Directory of trained models, as the predictor reads it.")
]
_OUT = Path("artifacts")

app = typer.Typer(help="Train the predictor's models on measurements.", no_args_is_help=True)


@app.command()
def interference(
    pairs: Annotated[Path, typer.Argument(help="Measured pairs, one JSON object a line.")],
    out: OutOption = _OUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train on measured pairs; publish if better than the quadratic on what was not seen."""
    from predictor.artifacts import Artifacts
    from predictor.training import read_pairs, train

    measured = read_pairs(pairs)
    try:
        card = train(measured, Artifacts(out))
    except ModuleNotFoundError as error:
        raise TandemError(
            f"Training needs {error.name}, which is not installed.",
            "Install Tandem with its extra: pip install 'tandem-gpu[train]'.",
        ) from None
    if as_json:
        print_json(card.model_dump())
        return
    print_table(
        f"interference {card.version}: mean absolute error of speed",
        ("Candidate", "Random", "Unseen pair", "Unseen model"),
        (
            (name, *(f"{errors[split]:.3f}" for split in ("random", "unseen_pair", "unseen_model")))
            for name, errors in card.errors.items()
        ),
    )
    err.print(
        f"Published {card.chosen} as {card.version} in {out}; restart the predictor to use it."
    )


@app.command()
def rollback(
    kind: Annotated[str, typer.Argument(help="Kind of model.")] = "interference",
    out: OutOption = _OUT,
) -> None:
    """Let the model before the present one serve again."""
    from predictor.artifacts import Artifacts

    version = Artifacts(out).rollback(kind)
    err.print(f"{kind} {version} serves again; restart the predictor to use it.")
