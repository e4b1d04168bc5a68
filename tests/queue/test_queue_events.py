"""Jobs that wait for long cause few events and writes, whatever the figures of their reason do."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from queue_builders import pod
from test_queue_controller import NOW

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.parsing import parse_gpu_job
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.planning.questions import Answer, Start, WaitingStarts
from scheduler_extender.queue.collector import collector_paused
from scheduler_extender.queue.order import reason_writer
from scheduler_extender.queue.order.reason_writer import ReasonWriter
from scheduler_extender.queue.steps.effects import Executor
from tandem.policy.job import Job
from tandem.reasons.causes import Cause, Reason


class Recorded:
    """Takes the place of the writer: it notes what is written, with the time."""

    def __init__(self) -> None:
        self.now = NOW
        self.events: list[tuple[float, str, str]] = []  # time, namespace, note
        self.statuses: list[tuple[float, str]] = []

    async def write_status(self, gang: Gang, status: Any, *, report: bool = False) -> None:
        assert gang.record is not None
        if status != gang.record.status:
            self.statuses.append((self.now, gang.key[1]))

    async def say(self, pod: Any, reason: str, note: str, kind: str) -> None:
        self.events.append((self.now, pod.namespace, note))


def record(namespace: str, name: str) -> GpuJobRecord:
    return parse_gpu_job(
        {
            "metadata": {"namespace": namespace, "name": name, "uid": name, "resourceVersion": "1"},
            "spec": {
                "workload": {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name},
                "demand": {"gpusPerPod": 1, "gangSize": 8},
            },
        }
    )


class Queue:
    """Gangs of eight pods that wait; the figures of their reason change in each cycle."""

    def __init__(self, **gangs: int) -> None:
        self.writer = Recorded()
        executor = Executor(self.writer, lambda: self.writer.now)  # type: ignore[arg-type]
        self.reason_writer = ReasonWriter(executor, lambda: self.writer.now)
        self.gangs: dict[tuple[str, str], Gang] = {}
        self.waiting = WaitingStarts()
        self.reason = Reason.PLACES_TAKEN
        self.figures = 0
        for namespace, count in gangs.items():
            for index in range(count):
                name = f"job-{namespace}-{index}"
                pods = tuple(pod(f"{name}-{i}") for i in range(8))
                key = (namespace, name)
                self.gangs[key] = Gang(key, record(*key), {each.uid: each for each in pods})
                start = Start(key, Job(id=name, gpus_per_pod=1, pods=8), pods)
                self.waiting.add(start)

    def run(self, seconds: int) -> None:
        async def cycles() -> None:
            for _ in range(seconds):
                self.writer.now += 1
                self.figures += 1
                choose = self.reason_writer.chooser(lambda _: "")
                cause = Cause(self.reason, gpus=self.figures, value=2, bound=2)
                chosen = choose(self.waiting, lambda _, cause=cause: (cause,))
                for key, what in chosen.items():
                    await self.reason_writer.tell(self.gangs[key], what, None, "")

        asyncio.run(cycles())


def most_in_a_second(times: list[float]) -> int:
    return max(Counter(times).values())


@pytest.mark.long
def test_240_waiting_gangs_cause_each_event_once_within_the_budget() -> None:
    queue = Queue(**{f"team{i}": 24 for i in range(10)})
    queue.run(600)
    events = queue.writer.events
    assert len(events) == 240 * 8
    assert most_in_a_second([at for at, _, _ in events]) <= reason_writer.EVENTS_BURST
    assert not any(char.isdigit() for _, _, note in events for char in note.split("For figures")[0])
    before = len(events)
    queue.run(600)
    assert len(events) == before, "only figures have changed"
    # Once at first; then the figures, each few minutes.
    assert len(queue.writer.statuses) <= 240 * (1 + 1200 / reason_writer.REFRESH_S)


def test_a_reason_in_whose_place_something_else_was_written_is_written_again() -> None:
    queue = Queue(team=2)
    queue.run(20)
    first, second = queue.gangs
    before, events = len(queue.writer.statuses), len(queue.writer.events)
    queue.reason_writer.overwritten(first)  # some of its pods have begun to run
    queue.run(20)
    assert queue.writer.statuses[before:] == [(NOW + 21, first[1])]
    assert len(queue.writer.events) == events, "the same reason is the same event"
    queue.reason_writer.forget(second)
    queue.run(1)
    assert [name for _, name in queue.writer.statuses[before:]] == [first[1], second[1]]


def test_one_namespace_does_not_use_up_the_events_of_another() -> None:
    queue = Queue(noisy=2000, quiet=3)
    queue.run(20)
    quiet = [at for at, _, note in queue.writer.events if "job-quiet" in note]
    assert len(quiet) == 3 * 8
    noisy = [at for at, _, note in queue.writer.events if "job-noisy" in note]
    bound = reason_writer.NAMESPACE_EVENTS_BURST + 20 * reason_writer.NAMESPACE_EVENTS_PER_SECOND
    assert len(noisy) <= bound


def test_another_reason_is_a_new_event_but_not_at_each_change() -> None:
    queue = Queue(team=1)
    reasons = (Reason.PLACES_TAKEN, Reason.MEMORY)
    for index in range(300):
        queue.reason = reasons[index % 2]
        queue.run(1)
    assert 2 * 8 <= len(queue.writer.events) <= 8 * (1 + 300 / reason_writer.EVENT_EVERY_S)


def test_an_event_is_repeated_before_it_expires() -> None:
    queue = Queue(team=1)
    queue.run(4000)
    notes = Counter(note for _, _, note in queue.writer.events)
    assert list(notes.values()) == [3 * 8]


def test_who_is_looked_at_are_new_gangs_in_turns_and_then_those_looked_at_longest_ago(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(50):
        gangs = [(f"team{n}", f"job-{i}") for i, n in enumerate(rng.integers(0, 3, 40))]
        known = {
            key: reason_writer._Known(*at_s, looked_s=float(rng.integers(80, 101)))
            for key in gangs
            if rng.random() < 0.6
            for at_s in [(float(rng.integers(80, 101)), "", "", 0)]
        }
        most = int(rng.integers(0, 45))
        turns = Counter[str]()
        new: list[tuple[int, tuple[str, str]]] = []
        for key in gangs:
            if key not in known:
                new.append((turns[key[0]], key))
                turns[key[0]] += 1
        due = [
            key
            for key in gangs
            if key in known
            and 100 - max(known[key].at_s, known[key].looked_s) >= reason_writer.CHANGED_S
        ]
        due.sort(key=lambda key: known[key].looked_s)
        expected = [*(key for _, key in sorted(new, key=lambda each: each[0])), *due][:most]
        twice = [*gangs, *gangs]  # several starts of a gang
        assert reason_writer._to_look_at(twice, known, 100.0, most) == expected


def test_the_starts_that_wait_are_read_with_what_is_said_of_each() -> None:
    starts = [Start(("team", f"j{i}"), Job(id=f"team/j{i}"), ()) for i in range(4)]
    waiting = WaitingStarts()
    for start in starts[:3]:
        waiting.add(start)
    others, soon = Cause(Reason.MAKING_ROOM), Cause(Reason.BEHIND)
    waiting.add(starts[3], others, coming=True)
    waiting.say(1, soon, coming=True)
    assert [each.position for each in waiting] == [0, 1, 2, 3]
    assert [each.causes for each in waiting] == [(), (soon,), (), (others,)]
    assert [each.start for each in waiting] == starts
    assert waiting.coming() == [starts[1], starts[3]]
    assert waiting[-1] == waiting[3]
    assert waiting[1:3] == [waiting[1], waiting[2]]
    with pytest.raises(IndexError):
        waiting[4]


def test_an_answer_whose_board_is_gone_says_so() -> None:
    why = (Cause(Reason.BEHIND),)
    answer = Answer(lambda _: why)
    answer.waiting.add(Start(("team", "j"), Job(id="team/j"), ()))
    assert answer.explain(answer.waiting[0]) == why
    answer.forget_board()
    with pytest.raises(RuntimeError, match="board is gone"):
        answer.explain(answer.waiting[0])


def test_the_garbage_collector_runs_again_after_a_cycle_that_failed() -> None:
    def fail() -> None:
        with collector_paused():
            assert not gc.isenabled()
            raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        fail()
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled(), "who switched it off switches it on"
    finally:
        gc.enable()
