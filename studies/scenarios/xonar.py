"""[Xonar] 2022: which two jobs share a GPU."""

from __future__ import annotations

from typing import Any

from studies.scenarios.model import Asks, Scenario, gpus

_XONAR: dict[str, Any] = {"paper": "Xonar", "profile": "xonar"}

SCENARIOS = (
    Scenario(
        name="active time fits idle time",
        section="III-B, Eq. 1",
        decides="To r = 1.5 the partner with the inverse, 0.67, is picked, not the next in line or"
        " the smallest.",
        jobs=(
            Asks("head", percent=60),
            Asks("next", percent=75),
            Asks("tiny", percent=5),
            Asks("fit", percent=40),
        ),
        looks={1: "fit+head"},
        **_XONAR,
    ),
    Scenario(
        name="the ratio and not the sum of busy shares",
        section="III-B, Eq. 1",
        decides="Next to r = 1.5, r = 0.25 is 0.62 from the fit and r = 1.22 is 0.83, though 60 %"
        " and 55 % add to 115 % and 60 % and 20 % to 80 % only.",
        jobs=(Asks("head", percent=60), Asks("near", percent=55), Asks("far", percent=20)),
        looks={1: "far+head"},
        **_XONAR,
    ),
    Scenario(
        name="both sides of the fit count",
        section="III-B, Eq. 1",
        decides="A product of ratios of 0.5 is closer to 1 than one of 1.7: too much is as bad as"
        " too little.",
        jobs=(
            Asks("head", percent=50),
            Asks("less", percent=5),
            Asks("more", percent=63),
            Asks("some", percent=34),
        ),
        looks={1: "head+some"},
        **_XONAR,
    ),
    Scenario(
        name="the peaks of both fit",
        section="III-B",
        decides="The best partner is passed over where its peak exceeds what the peak of the head"
        " leaves.",
        jobs=(
            Asks("head", percent=60, base_gib=20, extra_gib=20),
            Asks("fit", percent=40, base_gib=22, extra_gib=20),
            Asks("next", percent=70, base_gib=20, extra_gib=20),
        ),
        looks={1: "head+next"},
        **_XONAR,
    ),
    Scenario(
        name="the head of the queue goes first",
        section="III-B",
        decides="The first in the queue runs and picks, though two jobs behind it would fit each"
        " other best.",
        jobs=(
            Asks("head", percent=90),
            Asks("a", percent=50),
            Asks("b", percent=50),
            Asks("c", percent=30),
        ),
        looks={1: "c+head"},
        **_XONAR,
    ),
    Scenario(
        name="without a partner that fits the head runs alone",
        section="III-B",
        decides="Where no peak fits next to it, the head has the GPU alone.",
        jobs=(Asks("head", base_gib=60), Asks("a", base_gib=30), Asks("b", base_gib=21)),
        looks={1: "head"},
        **_XONAR,
    ),
    Scenario(
        name="the partner is picked before the next head has a GPU",
        section="III-B",
        decides="The head picks from the whole queue, the next in line included, though another GPU"
        " is free.",
        nodes=gpus(2),
        jobs=(Asks("head", percent=60), Asks("fit", percent=40), Asks("last", percent=90)),
        looks={1: "fit+head last"},
        **_XONAR,
    ),
    Scenario(
        name="two jobs on a GPU",
        section="II-B, footnote 1",
        decides="A GPU trains two jobs at once and no third.",
        jobs=(Asks("a", percent=20), Asks("b", percent=20), Asks("c", percent=20)),
        looks={1: "a+b"},
        **_XONAR,
    ),
    Scenario(
        name="a job that is never idle is no partner",
        section="III-B (ratio without idle time)",
        decides="The ratio of a job without idle time is infinite, so that it fits no job.",
        jobs=(Asks("head", percent=60), Asks("busy", percent=100)),
        looks={1: "head"},
        **_XONAR,
    ),
    Scenario(
        name="measured active time before predicted utilisation",
        section="III-A",
        decides="Where active and idle time were measured, they are the ratio, whatever utilisation"
        " is predicted.",
        jobs=(
            Asks("head", percent=60),
            Asks("said", percent=40, active=0.9),
            Asks("seen", percent=90, active=0.4),
        ),
        looks={1: "head+seen"},
        **_XONAR,
    ),
    Scenario(
        name="the survivor picks again",
        section="III-B (ours: the paper does not say)",
        decides="When one of a pair ends, the other is the one that picks, before the head of the"
        " queue.",
        jobs=(
            Asks("head", 0, 100, percent=60),
            Asks("fit", 0, 900, percent=40),
            Asks("next", 1, percent=95),
            Asks("late", 2, percent=58),
        ),
        looks={3: "fit+head", 101: "fit+late"},
        **_XONAR,
    ),
    Scenario(
        name="pairs in the order of arrival",
        profile="xonar-fifo-pairs",
        paper="Xonar",
        section="II-A, IV (baseline: parallel training)",
        decides="Parallel training takes the next two in line, whatever memory they need.",
        nodes=gpus(2),
        jobs=(
            Asks("head", percent=60, base_gib=60),
            Asks("next", percent=90, base_gib=60),
            Asks("fit", percent=40),
        ),
        looks={1: "head+next fit"},
    ),
)
