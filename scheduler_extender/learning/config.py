"""The settings of learning from measurements."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]


class LearningConfig(BaseModel):
    """What is done with what the agents measure of jobs that share a GPU.

    `mode`: `act` parts bad neighbours, `report` only says what it would do, `off` measures alone.
    Every `every_s`, a GPU's interference (the largest slowdown on it) enters a moving average with
    weight `1 - weight_of_past`. Over `max_interference`, and for as long as the average remembers,
    somebody is moved; below `clear_interference` all is well again. `max_migration_cost_gib` bounds
    what the moves of one look save and load, `rest_s` is the time between two moves of one job,
    `max_moves_of_others_per_hour` how many jobs of others are moved for one namespace's sake.
    `pairs_per_namespace`: bad pairs that are remembered by one namespace's word. After its
    neighbours have left, what an agent tells of a pod counts as its time alone `settle_s` later:
    twice the half-life of the agents' averages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["act", "report", "off"] = "act"
    every_s: Seconds = 10.0
    settle_s: Seconds = 20.0
    weight_of_past: Annotated[float, Field(gt=0, lt=1)] = 0.7
    max_interference: Annotated[float, Field(gt=0)] = 0.35
    clear_interference: Annotated[float, Field(ge=0)] = 0.25
    max_migration_cost_gib: Annotated[float, Field(gt=0)] = 80.0
    rest_s: Seconds = 600.0
    max_moves_per_hour: Annotated[int, Field(ge=0)] = 30
    max_moves_of_others_per_hour: Annotated[int, Field(ge=0)] = 2
    pairs_per_namespace: Annotated[int, Field(ge=1, le=1000)] = 64

    @property
    def memory_s(self) -> float:
        """How long the average remembers: the time in which what was is worth a third (1/e)."""
        return -self.every_s / math.log(self.weight_of_past)
