"""The settings of learning from measurements."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.settings import Section

Seconds = Annotated[float, Field(gt=0)]


class LearningConfig(Section):
    """Settings for what agents measure of jobs that share a GPU.

    `mode`: `act` parts bad neighbours, `report` only says what it would do, `off` measures alone.
    Every `every_s`, a GPU's interference (the largest slowdown on it) enters a moving average. Over
    `max_interference`, and for as long as the average remembers, a job is moved, and at most
    `max_moves_per_hour` jobs in the cluster (`separation.Limits` has what else limits moves).
    `write_every_s`: what is observed of a job is written into its GPUJob at most this often.
    `pairs_per_namespace`: bad pairs that are remembered because of one namespace's observations.
    After its neighbours have left, what an agent reports of a pod counts as its time alone
    `settle_s` later: twice the half-life of the agents' averages.
    """

    mode: Literal["act", "report", "off"] = "act"
    every_s: Seconds = 10.0
    settle_s: Seconds = 20.0
    write_every_s: Seconds = 20.0
    max_interference: Annotated[float, Field(gt=0)] = 0.35
    max_moves_per_hour: Annotated[int, Field(ge=0)] = 30
    pairs_per_namespace: Annotated[int, Field(ge=1, le=1000)] = 64
