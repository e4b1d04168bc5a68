"""The ten questions of docs/cli.md in Chromium, on a phone and on a desktop.

The clicks are those of the table's column "page", from the overview, and each true answer has to be
text that is seen. Pictures of the answers go to `.out/questions`, or where TANDEM_PICTURES says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_live import Live
from question_cluster import (
    DOES_NOT_SHARE,
    FULL,
    OVER,
    TEAM,
    Cluster,
    asked_cluster,
    services_killed,
)
from question_table import table

from controlplane import wait_until
from tandem.cli.page import PageServer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

WIDTHS = {375: 812, 1440: 900}
PICTURES = Path(os.environ.get("TANDEM_PICTURES", Path(__file__).parents[2] / ".out" / "questions"))
SHOWN_MS = 120_000
NEXT, JOBS, GPUS, MODELS = "Next in the queue", "Jobs", "GPUs", "Models"
WAITS, ONE = f"{TEAM}/job-waits", f"{TEAM}/job-one"
OVER_QUOTA = f"Namespace {OVER} is over its quota"


@dataclass(frozen=True)
class Answer:
    """The clicks that lead to an answer, the card that has it, and its words.

    A click is a tab, or a link in a card of the overview or of the view that a tab opens. `never`
    are words that would be wrong in that card.
    """

    clicks: tuple[str, ...]
    card: str
    says: tuple[str, ...]
    never: tuple[str, ...] = ()


JOB_ONE = (JOBS, ONE)
HEALTHY: dict[str, tuple[Answer, ...]] = {
    "Why does my job wait?": (
        Answer(
            (NEXT, WAITS), "Why it waits",
            ("It needs 1 GPU (0 of 2 GPUs can take it now).", FULL, DOES_NOT_SHARE),
        ),
    ),
    "When will it start?": (Answer((NEXT, WAITS), "Why it waits", ("Expected start",)),),
    "What slows it down?": (
        Answer(JOB_ONE, "Where it runs", (f"{OVER}/job-two",)),
        Answer(JOB_ONE, "State", ("Speed now not measured",)),
    ),
    "Which GPUs are idle?": (
        Answer((), "", ("2 GPUs on 1 node", "Idle 0")),
        Answer((GPUS,), "", ("2 GPUs", f"{TEAM}/job-alone", ONE, f"{OVER}/job-two")),
    ),
    "Did sharing pay?": (
        Answer(
            (), "Did sharing pay?", ("predicted", "Shared GPUs 1", "Jobs on them 2"),
            never=("measured",),
        ),
    ),
    "Why was it stopped?": (
        Answer(JOB_ONE, "State", ("Running",)),
        Answer(JOB_ONE, "What happened", ("Placed",), never=("Suspended", "Preempting", "Moved")),
    ),
    "What load was predicted?": (
        Answer(
            JOB_ONE, "Load: predicted and measured",
            ("Memory, upper bound 8.0 GiB", "Memory from declared by the user",
             "Utilisation from declared by the user", "Utilisation predicted 20 %"),
        ),
    ),
    "Is my model known?": (
        Answer((MODELS, f"{TEAM}/resnet50"), "Is it known?", ("The predictor knows its graph",),
               never=("Push its graph",)),
        Answer((MODELS, f"{TEAM}/gpt2"), "Is it known?", ("Push its graph with",),
               never=("The predictor knows its graph",)),
    ),
    "Which namespace is over quota?": (
        Answer((), "Namespaces", ("Over quota", "1 of 0 GPUs")),
    ),
    "What is broken?": (
        Answer((), "Needs attention", (OVER_QUOTA,),
               never=("answer", "silent", "quarantined", "failed")),
    ),
}  # fmt: skip
#: What is answered otherwise while the predictor, the agent and one extender are down.
KILLED = HEALTHY | {
    "Is my model known?": tuple(
        Answer((MODELS, f"{TEAM}/{model}"), "Is it known?", ("predictor does not answer",),
               never=("Push its graph", "The predictor knows its graph"))
        for model in ("resnet50", "gpt2")
    ),
    "What is broken?": (
        Answer(
            (), "Needs attention",
            (OVER_QUOTA, "The predictor does not answer", "2 pods of Tandem without an answer",
             "1 node with a silent agent"),
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with asked_cluster(live, tmp_path_factory.mktemp("second")) as found:
        yield found


@pytest.fixture(scope="module")
def address(cluster: Cluster) -> Iterator[str]:
    """The page as `tandem page` serves it."""
    with PageServer(cluster.page) as server:
        server.start()
        yield server.address


@pytest.fixture(scope="module")
def killed(cluster: Cluster) -> Iterator[None]:
    with services_killed(cluster):
        yield


class Opened:
    """The overview in a browser window of a width; `at` names the pictures."""

    def __init__(self, browser: Any, address: str, width: int, at: str) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": WIDTHS[width]})
        self._width, self._at, self._pictures = width, at, 0
        self.page.goto(address)
        self.page.wait_for_selector(".live:has-text('Live')", timeout=SHOWN_MS)

    def card(self, title: str) -> Any:
        """Return a card by its title; without one, all of the view."""
        if not title:
            return self.page.locator("main")
        heading = self.page.locator("h2", has_text=re.compile(rf"^{re.escape(title)}$"))
        return self.page.locator("section.card", has=heading)

    def click(self, clicks: tuple[str, ...]) -> None:
        """Click as the table says: a tab, or what a card is called, then a link in it."""
        from playwright.sync_api import expect

        if not clicks:
            return
        at, *links = clicks
        where = self.page.locator("main")
        if at in (JOBS, GPUS, MODELS):
            self.page.locator("header nav a", has_text=re.compile(rf"^{at}$")).click()
            expect(self.page.locator("h1")).to_have_text(at, timeout=SHOWN_MS)
        else:
            where = self.card(at)
        for link in links:
            found = where.locator("a", has_text=re.compile(rf"^{re.escape(link)}$")).first
            found.click(timeout=SHOWN_MS)
            expect(self.page.locator("h1")).to_contain_text(link, timeout=SHOWN_MS)

    def shows(self, answer: Answer) -> None:
        """Follow the clicks; the words of the answer are text that is seen in its card."""
        from playwright.sync_api import expect

        self.click(answer.clicks)
        card = self.card(answer.card)
        for words in answer.says:
            expect(card).to_contain_text(words, use_inner_text=True, timeout=SHOWN_MS)
        for words in answer.never:
            expect(card).not_to_contain_text(words, use_inner_text=True)
        box = card.bounding_box()
        assert box["height"] > 0
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= self._width
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self._width
        self._pictures += 1
        card.scroll_into_view_if_needed()
        path = PICTURES / f"{self._at}-{self._pictures}-{self._width}.png"
        self.page.screenshot(path=str(path))

    def says_when_it_starts_as(self, cluster: Cluster) -> bool:
        """Compare with the GPUJob, which has no forecast before the first one is made."""
        fact = self.card("Why it waits").locator(".facts > div", has_text="Expected start")
        words = fact.locator("dd").inner_text()
        known = cluster.status(TEAM, "waits").get("expectedStart") is not None
        pattern = r"(in|within|any) .*four times in five" if known else "not forecast yet"
        return re.match(pattern, words, re.DOTALL) is not None


def check(
    browser: Any, cluster: Cluster, address: str, width: int, answers: dict[str, tuple[Answer, ...]]
) -> None:
    assert list(answers) == list(table())
    PICTURES.mkdir(parents=True, exist_ok=True)
    state = "killed" if answers is KILLED else "healthy"
    for number, (question, all_answers) in enumerate(answers.items(), 1):
        for part, answer in enumerate(all_answers, 1):
            opened = Opened(browser, address, width, f"{state}-{number:02}{'abc'[part - 1]}")
            try:
                opened.shows(answer)
                if question == "When will it start?":
                    wait_until(
                        lambda opened=opened: opened.says_when_it_starts_as(cluster),
                        "the page tells the forecast",
                        timeout_s=120,
                    )
            finally:
                opened.page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_all_answers_are_seen(browser: Any, cluster: Cluster, address: str, width: int) -> None:
    wait_until(lambda: cluster.attention() == {}, "all services answer", timeout_s=180)
    check(browser, cluster, address, width, HEALTHY)


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("width", WIDTHS)
def test_all_answers_are_seen_while_services_are_down(
    browser: Any, cluster: Cluster, address: str, width: int
) -> None:
    check(browser, cluster, address, width, KILLED)
