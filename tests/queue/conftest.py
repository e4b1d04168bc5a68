"""After every test of the queue: each change of phase is in the table, and the state agrees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from queue_builders import is_transition

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.writes import Writer
from tandem.contracts.resources import GPUJobStatus


@pytest.fixture(autouse=True)
def invariants(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    states: list[ClusterState] = []
    wrong: list[str] = []
    made, write = ClusterState.__init__, Writer.write_status

    def make(self: ClusterState, **options: Any) -> None:
        made(self, **options)
        states.append(self)

    async def write_status(
        self: Writer, gang: Gang, status: GPUJobStatus, *, report: bool = False
    ) -> None:
        before = gang.record.status.phase if gang.record is not None else status.phase
        if not is_transition(before, status.phase):
            wrong.append(f"{gang.key}: {before} -> {status.phase} ({status.reason})")
        await write(self, gang, status, report=report)

    monkeypatch.setattr(ClusterState, "__init__", make)
    monkeypatch.setattr(Writer, "write_status", write_status)
    yield
    assert not wrong, "changes of phase that queue/steps/phases.py does not list"
    for state in states:
        state.check()
