"""The jobs of a run that ask for a level of topology, kept to domains before each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import numpy as np

from tandem.policy.board import Board
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline
from tandem.policy.topology import Gang, Keeper, Topology, kept_pipeline
from tandem.policy.units import Bools, Ints

#: Times that a round is decided: a job in front may take the room of the domain that was chosen,
#: and another domain has room, but the next event may be hours away.
_AGAIN = 4


@dataclass(slots=True)
class KeptJobs:
    """Nothing where no job asks for a level: a run is then as without it."""

    pipeline: Pipeline
    _asks: Bools  # (jobs,)
    _keeper: Keeper | None

    @classmethod
    def of(cls, jobs: Sequence[Job], topology: Topology | None, pipeline: Pipeline) -> Self:
        """Return those of `jobs`; without a topology, none of them is kept to anything."""
        asking = np.array([job.asks_topology for job in jobs], dtype=np.bool_)
        if topology is None or not asking.any():
            return cls(pipeline, asking, None)
        keeper, pipeline = kept_pipeline(topology, pipeline)
        return cls(pipeline, asking, keeper)

    @property
    def tries(self) -> int:
        """How often a round is decided at most."""
        return 1 if self._keeper is None else _AGAIN

    def stay(self, board: Board, rows_of: Mapping[int, tuple[int, ...]]) -> Pipeline:
        """Keep running jobs to the domains of their GPUs; return the pipeline from now on."""
        return self._keep(
            board, [Gang((i,), np.array(at)) for i, at in rows_of.items() if self._asks[i]]
        )

    def choose(
        self, board: Board, ranked: Ints, joins: Mapping[int, int] = MappingProxyType({})
    ) -> Pipeline:
        """Choose domains for the waiting jobs of `ranked`; return the pipeline of the round.

        `joins` has of pods that join a running job the job: they go to its domain.
        """
        waiting = ranked[self._asks[ranked] & ~board.on_gpus[ranked]].tolist()
        at = [board.rows_of.get(joins.get(index, -1)) for index in waiting]
        return self._keep(board, [Gang((i,), rows) for i, rows in zip(waiting, at, strict=True)])

    def _keep(self, board: Board, gangs: Sequence[Gang]) -> Pipeline:
        if self._keeper is not None and gangs:
            before = [board.jobs[role].where for gang in gangs for role in gang.roles]
            self._keeper.keep(board, gangs, self.pipeline)
            if before != [board.jobs[role].where for gang in gangs for role in gang.roles]:
                # A new one: what is compiled has read the nodes of each job from that before.
                self.pipeline = replace(self.pipeline)
        return self.pipeline
