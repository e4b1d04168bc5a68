"""The default mix of `--truth mix`: jobs and slowdowns for a trial, where a user has none yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: Written by `python -m studies.profiles.mix`.
FILE = Path(__file__).with_name("mix.json")
#: The types of GPU that the file has, and the one that stands for all others.
TYPES = ("V100", "P100")
_STANDS_FOR_OTHERS = "V100"


def types_in_mix(types: Sequence[str]) -> tuple[str, ...]:
    """Return for each type of GPU the one of the mix whose slowdowns it is taken to have."""
    return tuple(each if each in TYPES else _STANDS_FOR_OTHERS for each in types)


def what_the_mix_assumes(types: Sequence[str], seed: int) -> list[str]:
    """Return what a run with the mix takes for granted, a sentence each."""
    said = [
        "The jobs have a default mix of loads, and not yours: each job draws one of 26 training"
        f" configurations of 7 models (seed {seed}).",
        "Their slowdowns are estimates, by the interference model that ships with Tandem and was"
        " trained on measured pairs of these configurations; their memory and utilisation are"
        " drawn.",
        "So the figures show what sharing could bring, and not what it brings on your cluster.",
    ]
    others = [each for each in types if each not in TYPES]
    if others:
        said.insert(
            2, f"{', '.join(others)} is taken to slow jobs down as a {_STANDS_FOR_OTHERS} does."
        )
    return said
