"""A profile that wants more shares of a GPU than agents offer says what to set."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from extender_builders import NOW, gpu, gpu_node

from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.config import ExtenderConfig
from scheduler_extender.serving.offers import Offers


def warned(caplog: pytest.LogCaptureFixture, profile: str, *nodes: dict[str, Any]) -> list[str]:
    config = ExtenderConfig.model_validate({"profile": profile})
    found = ClusterState(now_s=NOW)
    Offers(found, config.profile.name, config.shares)
    with caplog.at_level(logging.WARNING, logger="scheduler_extender.serving.offers"):
        for node in nodes:
            found.upsert("gpunodes", node)
    return [record.getMessage() for record in caplog.records]


def test_of_fewer_shares_than_the_profile_wants_one_line_says_what_to_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    two = (gpu_node(name, gpu(f"{name}-0", shares=2)) for name in ("n0", "n1"))
    assert warned(caplog, "ojpp", *two) == [
        "agents offer fewer shares of a GPU than the profile puts jobs on one:"
        " set agent.config.shares profile=ojpp jobs=16 node=n0 shares=2"
    ]


@pytest.mark.parametrize(
    ("profile", "shares"), [("ojpp", 16), ("tandem", 2), ("tandem", 7), ("xonar", 2)]
)
def test_nothing_is_said_of_shares_that_suffice(
    caplog: pytest.LogCaptureFixture, profile: str, shares: int
) -> None:
    assert warned(caplog, profile, gpu_node("n0", gpu("g0", shares=shares))) == []


def test_nothing_is_said_of_gpus_that_offer_less_for_a_reason_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = gpu_node(
        "n0",
        gpu("g0", shares=0, sharesReason="compute mode Prohibited"),
        gpu("g1", shares=1, sharesReason="a foreign process computes"),
    )
    assert warned(caplog, "tandem", node) == []
