"""`tandem train`: learn loads and interference from what was measured, or undo that."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from predictor.artifacts import Artifacts, Card
from tandem.cli.forms import Form, reports
from tandem.cli.output import err, print_json, print_table
from tandem.cli.reach import ContextOption, KubeconfigOption
from tandem.errors import TandemError, UsageError

if TYPE_CHECKING:
    from predictor.interference.pairs import MeasuredPair
    from predictor.training.profiles import Profile

OutOption = Annotated[
    Path, typer.Option("--out", help="Directory of trained models, as the predictor reads it.")
]
_OUT = Path("artifacts")


class _ManyFiles(TyperGroup):
    """Lets `--profiles A B C` name many files, as shells expand them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - not public
        """Put the option before each of its files."""
        spread: list[str] = []
        several = False
        for arg in args:
            if arg.startswith("-"):
                several = arg == "--profiles"
            elif several and spread[-1] != "--profiles":
                spread.append("--profiles")
            spread.append(arg)
        rest: list[str] = super().parse_args(ctx, spread)
        return rest


app = typer.Typer(help="Train the predictor's models on measurements.", cls=_ManyFiles)


@app.callback(invoke_without_command=True)
@reports
def load(
    context: typer.Context,
    profiles: Annotated[
        list[Path] | None,
        typer.Option("--profiles", metavar="FILE...", help="Files of measured profiles."),
    ] = None,
    from_cluster: Annotated[
        bool,
        typer.Option("--from-cluster", help="Learn from what the cluster's agents have seen."),
    ] = False,
    kubeconfig: KubeconfigOption = None,
    cluster: ContextOption = None,
    out: OutOption = _OUT,
    form: Form = Form.TABLE,
) -> None:
    """Train on measured profiles; publish what beats the formula and the model that serves.

    With --from-cluster it is no failure that nothing better was found: what serves goes on.
    """
    if context.invoked_subcommand is not None:
        return
    if not profiles and not from_cluster:
        raise UsageError(
            "Nothing to learn from.",
            "Name files of `tandem profile collect` with --profiles, or give --from-cluster.",
        )
    from predictor.training.profiles import read_profiles

    read = [profile for file in profiles or () for profile in read_profiles(file)]
    if from_cluster:
        from predictor.training.from_cluster import read_cluster

        seen = read_cluster(kubeconfig, cluster)
        err.print(f"{len(seen)} kinds of runs were seen in the cluster.")
        read += seen
    card = _train_load(read, out, may_stay=from_cluster)
    if card is None:
        return
    if form is Form.JSON:
        print_json(card.model_dump())
        return
    targets = list(card.errors["formula"])
    print_table(
        f"load {card.version}: RMSLE on families that were left out",
        ("Candidate", *targets),
        ((name, *(f"{by[target]:.3f}" for target in targets)) for name, by in card.errors.items()),
    )
    err.print(
        f"Published {', '.join(card.parts)} as {card.version} in {out} (with a report); "
        "restart the predictor to use it."
    )


def _train_load(read: Sequence[Profile], out: Path, *, may_stay: bool) -> Card | None:
    from predictor.training.load import train_load

    try:
        return train_load(read, Artifacts(out))
    except TandemError as error:
        if not may_stay:
            raise
        err.print(f"Nothing published: {error.message} The model in use stays.", highlight=False)
        return None


@app.command()
@reports
def interference(
    pairs: Annotated[
        list[Path],
        typer.Argument(help="Files of `tandem profile collect`, or of pairs, one a line."),
    ],
    out: OutOption = _OUT,
    form: Form = Form.TABLE,
) -> None:
    """Train on measured pairs; publish if better than the quadratic on what was not seen."""
    from predictor.load.model import open_predictor
    from predictor.training.interference import read_pairs
    from predictor.training.profiles import is_collected, read_measured_pairs

    predictor = open_predictor(out)
    measured = [
        pair
        for file in pairs
        for pair in (
            read_measured_pairs(file, predictor) if is_collected(file) else read_pairs(file)
        )
    ]
    card = _train_interference(measured, out)
    if form is Form.JSON:
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


def _train_interference(measured: list[MeasuredPair], out: Path) -> Card:
    from predictor.training.interference import train

    return train(measured, Artifacts(out))


class ModelKind(StrEnum):
    """Models that are trained."""

    LOAD = "load"
    INTERFERENCE = "interference"


@app.command()
@reports
def rollback(
    kind: Annotated[ModelKind, typer.Argument(help="Kind of model.")] = ModelKind.INTERFERENCE,
    out: OutOption = _OUT,
    form: Form = Form.TABLE,
) -> None:
    """Let the model before the present one serve again."""
    version = Artifacts(out).rollback(kind.value)
    if form is Form.JSON:
        print_json({"kind": kind.value, "version": version})
    err.print(f"{kind} {version} is in use again; restart the predictor to use it.")
