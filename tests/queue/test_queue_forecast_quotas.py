"""Quotas in forecasts: the rules of real rounds, and what follows for starts and for what if."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from seeds import seed_for
from test_queue_forecast import expected, job, pictured

from scheduler_extender.planning.forecast_quotas import Admission, Limits
from scheduler_extender.planning.questions import Question, Start
from scheduler_extender.planning.what_if import Change, changed, spans
from scheduler_extender.quotas.config import Quota
from scheduler_extender.quotas.grants import Stake, Turn
from scheduler_extender.quotas.round import _QuotaRound
from tandem.policy.catalog import load_profile

RIGID = load_profile("fifo")
FIFO = RIGID.model_copy(update={"order": RIGID.order.model_copy(update={"blocks": False})})
SEED = seed_for("forecast quotas")


def turn_of(quota: Quota, held: Mapping[tuple[str, str], int], *others: int) -> Turn:
    """Return an account of gangs that hold GPUs, and of gangs that are in no forecast."""
    outside = {("a", f"other-{i}"): Stake(gpus, 0, False) for i, gpus in enumerate(others)}
    return Turn([quota], {key: Stake(gpus, 0, False) for key, gpus in held.items()}, {}, outside)


def starts(quota: Quota | None, *others: int) -> dict[str, float]:
    """Four GPUs, one of which `a/runs` has for 100 s; then who waits, in this order."""
    found = expected(
        FIFO, 4, [job("a/runs")],
        [job("a/wide", 2, at=1.0), job("a/small", at=2.0), job("b/last", at=3.0)],
        left_s={"a/runs": 100.0, "a/wide": 50.0, "a/small": 50.0, "b/last": 50.0},
        quotas=quota and turn_of(quota, {("a", "runs"): 1}, *others),
    )  # fmt: skip
    return {name: earliest for name, (earliest, _) in found.items()}


def test_without_quotas_jobs_start_where_there_are_gpus() -> None:
    assert starts(None) == {"a/wide": 0.0, "a/small": 0.0, "b/last": 50.0}


def test_a_job_beyond_a_cap_starts_when_its_namespace_has_room() -> None:
    """It was expected at once, for ever."""
    assert starts(Quota(namespace="a", max_gpus=2)) == {
        "a/wide": 100.0, "a/small": 0.0, "b/last": 0.0,
    }  # fmt: skip
    assert starts(Quota(namespace="a", gpus=3, borrow=False)) == {
        "a/wide": 0.0, "a/small": 50.0, "b/last": 0.0,
    }  # fmt: skip


def test_what_holds_gpus_outside_the_queue_counts() -> None:
    quota = Quota(namespace="a", max_gpus=3)
    assert starts(quota)["a/wide"] == 0.0
    assert "a/wide" not in starts(quota, 2), "the forecast does not know when those end"


def test_who_keeps_within_a_share_starts_before_who_borrows() -> None:
    assert starts(Quota(namespace="b", gpus=1)) == {"a/wide": 0.0, "a/small": 50.0, "b/last": 0.0}


def test_a_job_that_finds_no_place_keeps_no_room_under_the_cap() -> None:
    nowhere = {7: np.array([False])}
    found = expected(
        FIFO, 2, [], [job("a/nowhere", where=7), job("a/next", at=1.0)],
        nodes=nowhere, quotas=turn_of(Quota(namespace="a", max_gpus=1), {}),
    )  # fmt: skip
    assert found == {"a/next": (0.0, 0.0)}


@pytest.mark.long
def test_what_if_a_namespace_had_another_quota() -> None:
    picture, jobs, names = pictured(
        FIFO, 2, [job("a/runs")], [job("a/waits", at=1.0)],
        left_s={"a/runs": 100.0, "a/waits": 50.0},
        quotas=turn_of(Quota(namespace="a", max_gpus=1), {("a", "runs"): 1}),
    )  # fmt: skip
    row = names.index("a/waits")

    def start_s(change: Change) -> float:
        return spans(*changed(picture, jobs, row, change), row)[0][0]

    assert start_s(Change()) == 100.0
    assert start_s(Change(limits=Limits(most=2))) == 0.0
    assert start_s(Change(limits=Limits(share=1, borrow=False))) == 100.0


@pytest.mark.long
def test_what_if_there_were_a_quota_at_all() -> None:
    picture, jobs, names = pictured(
        FIFO, 2, [job("a/runs")], [job("a/waits", at=1.0)],
        left_s={"a/runs": 100.0, "a/waits": 50.0},
    )  # fmt: skip
    row = names.index("a/waits")
    change = Change(limits=Limits(most=1))
    assert spans(picture, jobs, row)[0][0] == 0.0
    assert spans(*changed(picture, jobs, row, change), row)[0][0] == 100.0


# --- the same as real rounds ----------------------------------------------------------------------


def random_quotas(rng: random.Random) -> list[Quota]:
    found = []
    for name in rng.sample(["a", "b", "c", "*"], rng.randint(1, 4)):
        share = rng.choice([None, 0, 1, 3, 6])
        most = rng.choice([None, (share or 0) + rng.randint(0, 4)])
        found.append(
            Quota(
                namespace=name, gpus=share, max_gpus=most, borrow=rng.random() < 0.6,
                endless_gpus=rng.choice([None, 0, 2]),
                gpu_seconds=rng.choice([None, 10.0]) if share is not None else None,
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize("number", range(300))
def test_a_forecast_admits_whom_a_round_admits(number: int) -> None:
    rng = random.Random(SEED + number)
    keys = [(rng.choice("abc"), str(i)) for i in range(rng.randint(1, 12))]
    gpus = [rng.randint(1, 4) for _ in keys]
    runs = np.array([rng.random() < 0.4 for _ in keys])
    endless = np.array([rng.random() < 0.3 for _ in keys])
    stakes = {
        key: Stake(size if on else 0, size, bool(lasts))
        for key, size, on, lasts in zip(keys, gpus, runs, endless, strict=True)
    }
    others = {("a", "gone"): Stake(rng.randint(0, 2), 0, rng.random() < 0.5)}
    turn = Turn(random_quotas(rng), stakes, {"a": 20.0, "b": 5.0}, others)
    order = list(range(len(keys)))
    rng.shuffle(order)
    waiting = {row: Start(keys[row], job("x", gpus[row]), ()) for row in order if not runs[row]}
    asked: Any = Question(
        rank=lambda: [keys[row] for row in order],
        starts={keys[row]: (start,) for row, start in waiting.items()},
        snapshot=None, eligible={}, arrays=None, row_of={},
    )  # type: ignore[arg-type] # fmt: skip # neither is looked at
    passed_over = {row for row in waiting if rng.random() < 0.2}
    real, withheld = _QuotaRound(asked, turn, lambda _: None)._admit(  # type: ignore[arg-type,return-value]
        {keys[row] for row in passed_over}
    )
    shares = turn.shares(keys)
    assert shares is not None
    admission = Admission(shares, [name for name, _ in keys], gpus, endless)
    tried, capped = admission.admit(order, runs, passed_over)
    assert [keys[row] for row in tried if not runs[row]] == list(real)
    assert capped == {start.gpujob[0] for start, _ in withheld}
