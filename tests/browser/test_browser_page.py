"""The status page in a real browser: every view, axe, the keyboard, 320 px, script injection."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import HTTPException

from benchmarks.page.fleet import Fleet
from benchmarks.page.site import PageSite, page_site
from scheduler_extender.accounting.account import Account, Parts
from scheduler_extender.accounting.days import Day, day_of
from scheduler_extender.accounting.report import report_of
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.serving.readers import Readers
from tandem.kube.access import TOKEN_REVIEWS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: Markup in each way that a tenant could try to have it run.
NASTY = (
    "<img src=x onerror=window.hacked=1><script>window.hacked=2</script>"
    "'\"><svg onload=window.hacked=3>javascript:window.hacked=4"
)
EVENT = {
    "at": "2026-11-22T10:40:00Z", "type": "Warning", "reason": NASTY, "note": NASTY,
    "kind": NASTY, "name": NASTY, "count": 3,
}  # fmt: skip
PROFILE = {
    "namespace": "vision", "name": "resnet50", "featureHash": NASTY, "observed": [],
    "features": {
        "flops": 4.1e9, "parameters": 25_557_032, "parameterBytes": 102_228_128, "nodes": 175,
        "activationBytes": 90_000_000, "largestTensorBytes": 3_211_264, "depth": 122,
        "tensorSkew": 0.08,
    },
}  # fmt: skip
VIEWS = {
    "overview": "",
    "jobs": "?view=jobs",
    "waiting jobs": "?view=jobs&phase=Waiting",
    "an empty list": "?view=jobs&q=nothing",
    "gpus": "?view=gpus",
    "nodes": "?view=nodes",
    "models": "?view=models",
    "node": "?view=node&node=gpu-0000",
    "gpu": "?view=gpu&node=gpu-0000&gpu=GPU-0000-0",
    "running job": "?view=job&namespace=vision&name=job-nasty",
    "waiting job": "?view=job&namespace=language&name=job-nasty-waits",
    "model": "?view=model&namespace=vision&name=resnet50",
    "past": "?view=past&days=30&by=user",
}


def past() -> dict[str, Any]:
    """A report with the names that a tenant chose."""
    now_s = time.time()
    day = Day(day_of(now_s))
    for number in range(3):
        day.take(
            Account(
                uid=f"u{number}", namespace="vision", name=f"job-{number}", user=NASTY,
                model=NASTY, gpu_type="NVIDIA A100", gpus=2, queued_s=now_s - 9000,
                started_s=now_s - 7200, until_s=now_s - 60 - number, held_gpu_s=14_000.0,
                parts=Parts(used=0.4, neighbours=0.4, lost=0.1), waits={NASTY[:60]: 1800.0},
                phase="Completed", slowdown=0.2, neighbours=((NASTY, 0.2),),
            )
        )  # fmt: skip
    return report_of({day.number: day}, now_s, 30, "user", None)


def fill(state: ClusterState) -> None:
    """A small cluster, and a tenant that writes markup into every field that takes any text."""
    fleet = Fleet(3, 20, 1, time.time())
    fleet.fill(state)
    running = fleet._residents(2, 7) or fleet._residents(2, 6) or fleet._residents(2, 5)
    job, pod = running[0][1], running[1][1]
    job["metadata"] |= {"name": "job-nasty", "namespace": "vision", "uid": "nasty"}
    job["metadata"]["labels"] = {"app": NASTY}
    job["spec"]["demand"]["model"] = "resnet50"
    job["spec"]["workload"] |= {"name": NASTY, "kind": NASTY}
    job["status"] |= {"message": NASTY, "reason": NASTY}
    job["status"]["observed"] |= {
        "kind": NASTY[:100],
        "neighbours": [{"kind": NASTY[:100], "slowdown": 0.2, "means": "utilisation"}],
    }
    job["status"]["decisions"] = [{"at": "2026-11-22T10:00:00Z", "what": NASTY, "why": NASTY}]
    job["status"]["load"]["modelVersion"] = NASTY
    pod["metadata"] |= {"namespace": "vision"}
    pod["metadata"]["ownerReferences"][0]["name"] = "nasty"
    state.upsert("gpujobs", job)
    state.upsert("pods", pod)
    waits = fleet.waiting_job(0)
    waits["metadata"] |= {"name": "job-nasty-waits", "namespace": "language", "uid": "nasty2"}
    waits["spec"]["demand"]["model"] = NASTY
    waits["status"]["message"] = f"{NASTY}; {NASTY}"
    state.upsert("gpujobs", waits)
    unknown = fleet.waiting_job(1)
    unknown["metadata"] |= {"name": "job-unknown", "namespace": "vision", "uid": "unknown"}
    unknown["status"]["load"] = {
        "memoryBaseBytes": 0, "memoryPeakExtraBytes": 0, "memoryP95Bytes": 0, "peakProbability": 0,
        "utilisationPercent": 100, "utilisationP95Percent": 100, "memorySource": "whole-gpu",
        "utilisationSource": "whole-gpu",
    }  # fmt: skip
    state.upsert("gpujobs", unknown)
    report = fleet.node(0)
    report["status"]["gpus"][4] |= {"health": "Quarantined", "healthReason": NASTY}
    report["status"] |= {
        "driverVersion": NASTY,
        "conditions": [{"type": NASTY, "status": "True", "message": NASTY,
                        "lastTransitionTime": "2026-11-22T10:00:00Z"}],
        "outOfMemory": [{"gpu": "GPU-0000-0", "namespace": "vision", "pod": "nasty-0", "uid": "u",
                         "container": "main", "exitCode": 1, "endedAt": "2026-11-22T10:00:00Z"}],
    }  # fmt: skip
    state.upsert("gpunodes", report)


class Api:
    """An API server with a tenant that may list GPUJobs in `vision`."""

    def create(self, resource: Any, body: Any, namespace: Any = None) -> Any:
        spec = body["spec"]
        if resource == TOKEN_REVIEWS:
            known = spec["token"] == "tenant"
            return {"status": {"authenticated": known, "user": {"username": "tenant"}}}
        wanted = spec["resourceAttributes"]
        own = (wanted["resource"], wanted.get("namespace")) == ("gpujobs", "vision")
        return {"status": {"allowed": own}}


async def what_if(key: tuple[str, str], given: dict[str, Any]) -> dict[str, Any]:
    """Answer as the extender does: of twice the GPUs nothing, and at first by another replica."""
    ASKED.append((key, {name: value for name, value in given.items() if value is not None}))
    if len(ASKED) == 1:
        raise HTTPException(421, "this replica does not plan: another one does")
    if given["gpus"] == 3:
        raise HTTPException(400, "3 GPUs are no whole number of pods: each of its pods asks for 2")

    def at(minutes: float) -> str:
        return rfc3339(time.time() + 60 * minutes + 1)

    load = {"memoryBytes": 20 << 30, "utilisationPercent": 81.4, "iterationSeconds": 0.25}
    batch = {} if given["batch_size"] is None else load
    return {
        "asOf": at(-1),
        "now": {
            "gpus": 4,
            "start": {"earliest": at(10), "latest": at(60)},
            "end": {"earliest": at(120), "latest": None},
        } | batch,
        "then": {
            "gpus": given["gpus"] or 4,
            "start": {"earliest": at(-1), "latest": at(5)},
            "end": {"earliest": None, "latest": None},
        } | batch,
    }  # fmt: skip


ASKED: list[tuple[tuple[str, str], dict[str, Any]]] = []


@pytest.fixture(scope="module")
def site() -> Iterator[PageSite]:
    with page_site(fill, events=[EVENT], profile=PROFILE, report=past(), what_if=what_if) as found:
        yield found


class Opened:
    """A page, and all that the browser complained about."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 800}} | options
        self.page = browser.new_page(**options)
        self.said: list[str] = []
        self.page.on("console", lambda each: self.said.append(each.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog {dialog.message}"))
        self.page.goto(url)

    def live(self) -> Any:
        self.page.wait_for_selector(".live:has-text('Live')", timeout=60_000)
        self.page.wait_for_timeout(300)
        return self.page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_violation_and_no_text_becomes_markup(
    browser: Any, site: PageSite, view: str, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    opened = Opened(browser, f"{site.url}/status/{VIEWS[view]}", color_scheme=scheme)
    page = opened.live()
    for summary in page.query_selector_all("summary"):
        summary.click()
        page.wait_for_selector("pre")
    found = Axe().run(page).response["violations"]
    assert [(each["id"], [n["html"][:120] for n in each["nodes"][:3]]) for each in found] == []
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert opened.said == []
    page.close()


def test_a_job_of_which_nothing_is_known_is_predicted_a_whole_gpu_and_not_0_bytes(
    browser: Any, site: PageSite
) -> None:
    url = f"{site.url}/status/?view=job&namespace=vision&name=job-unknown"
    page = Opened(browser, url).live()
    shown = page.inner_text("main")
    assert "predicted a whole GPU" in " ".join(shown.split())
    assert "0 B" not in shown
    page.close()


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_cut_off_at_320_px(browser: Any, site: PageSite, view: str) -> None:
    size = {"width": 320, "height": 640}
    page = Opened(browser, f"{site.url}/status/{VIEWS[view]}", viewport=size).live()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.close()


def test_markup_is_shown_as_it_was_written(browser: Any, site: PageSite) -> None:
    page = Opened(browser, f"{site.url}/status/{VIEWS['running job']}").live()
    assert NASTY in page.inner_text("main")
    page.close()


def test_the_past_shows_who_had_what(browser: Any, site: PageSite) -> None:
    page = Opened(browser, f"{site.url}/status/{VIEWS['past']}").live()
    page.wait_for_selector("table[aria-label='Jobs that ended']")
    text = page.inner_text("main")
    assert NASTY in text
    assert "11.7 GPU-hours" in text  # held: three times 14,000 GPU-seconds
    page.close()


def test_a_waiting_job_is_asked_about_by_keyboard_on_a_narrow_screen(
    browser: Any, site: PageSite
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    ASKED.clear()
    size = {"width": 375, "height": 667}
    opened = Opened(browser, f"{site.url}/status/{VIEWS['waiting job']}", viewport=size)
    page = opened.live()
    page.focus("text=Skip to the content")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "number":
            break
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    page.wait_for_selector("table[aria-label='Both cases']")
    assert ASKED == 2 * [(("language", "job-nasty-waits"), {"gpus": 2})], "asked again after 421"
    rows = page.eval_on_selector_all(
        "table[aria-label='Both cases'] tbody tr", "rows => rows.map(row => row.innerText)"
    )
    assert "in 10 min to 1 h" in rows[0]
    assert "in 2 h or later" in rows[0]
    assert "within 5 min" in rows[1]
    assert "not within 48 h" in rows[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert Axe().run(page).response["violations"] == []

    page.fill("input[type=number] >> nth=0", "3")
    page.fill("input[type=number] >> nth=1", "20.5")
    page.select_option("form select", "false")
    page.keyboard.press("Enter")
    page.click("form button")
    alert = page.wait_for_selector("[role=alert]").inner_text()
    assert alert == ("No answer: 3 GPUs are no whole number of pods: each of its pods asks for 2.")
    assert ASKED[-1][1] == {"gpus": 3, "memory": int(20.5 * 2**30), "share": False}
    page.fill("input[type=number] >> nth=0", "")
    page.fill("input[type=number] >> nth=2", "64")
    page.click("form button")
    page.wait_for_selector("table[aria-label='Both cases'] >> text=0.25 s")
    assert ASKED[-1][1] == {"batch_size": 64, "memory": int(20.5 * 2**30), "share": False}
    assert [said for said in opened.said if "Failed to load resource" not in said] == []
    page.close()


def test_a_job_that_does_not_wait_is_not_asked_about(browser: Any, site: PageSite) -> None:
    page = Opened(browser, f"{site.url}/status/{VIEWS['running job']}").live()
    assert page.query_selector("form") is None
    page.close()


def test_every_view_is_reached_by_keyboard(browser: Any, site: PageSite) -> None:
    # What polls by an expression of the page's own runs `eval`, which the page's policy forbids.
    from playwright.sync_api import expect

    page = Opened(browser, f"{site.url}/status/").live()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for title in ("Jobs", "GPUs", "Nodes", "Models", "Past"):
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == title:
                break
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", "the focus is seen"
        page.keyboard.press("Enter")
        expect(page).to_have_title(re.compile(f"^{title}"))
        expect(page.locator("h1:focus")).to_have_count(1)
        page.evaluate("document.querySelector('.brand').focus()")
    page.close()


def test_filters_are_in_the_address_and_come_back_with_it(browser: Any, site: PageSite) -> None:
    page = Opened(browser, f"{site.url}/status/?view=jobs").live()
    page.fill("input[type=search] >> nth=0", "sweep")
    page.wait_for_url("**q=sweep**")
    page.select_option("select >> nth=1", "waiting")
    page.wait_for_url("**sort=waiting**")
    words = page.wait_for_selector(".found").inner_text()
    page.goto(page.url)
    page.wait_for_selector(f".found:has-text('{words}')")
    assert page.input_value("input[type=search] >> nth=0") == "sweep"
    page.close()


def test_a_change_shows_without_reloading(browser: Any, site: PageSite) -> None:
    page = Opened(browser, f"{site.url}/status/?view=jobs&q=comes-late").live()
    made = Fleet(1, 1, 2, time.time()).waiting_job(0)
    made["metadata"] |= {"name": "job-comes-late", "uid": "late"}
    site.change(lambda state: state.upsert("gpujobs", made))
    page.wait_for_selector("table >> text=job-comes-late", timeout=30_000)
    page.close()


#: Follows a view whose stream ends at once, many times; counts what listens to its signal then.
STREAMS_THAT_END = """async () => {
  const { follow } = await import("./data.js");
  const stop = new AbortController();
  const held = new Set();
  let streams = 0;
  const { addEventListener, removeEventListener } = EventTarget.prototype;
  stop.signal.addEventListener = function (...all) {
    held.add(all[1]);
    addEventListener.apply(this, all);
  };
  stop.signal.removeEventListener = function (...all) {
    held.delete(all[1]);
    removeEventListener.apply(this, all);
  };
  const before = window.fetch;
  window.fetch = async () => {
    if (++streams === 8) stop.abort();
    return new Response("");
  };
  await follow("jobs", {}, { onView() {}, onTrouble() {}, signal: stop.signal });
  window.fetch = before;
  return { listeners: held.size, streams };
}"""


def test_streams_that_end_leave_no_listener_behind(browser: Any, site: PageSite) -> None:
    """A page that is open for a day opens a stream every 50 s."""
    page = Opened(browser, f"{site.url}/status/?view=nodes").live()
    found = page.evaluate(STREAMS_THAT_END)
    assert found["streams"] == 8
    assert found["listeners"] == 0
    page.close()


def test_a_tenant_signs_in_and_the_token_is_in_no_address(browser: Any) -> None:
    with page_site(fill, may=Readers(Api()).check) as site:  # type: ignore[arg-type]
        opened = Opened(browser, f"{site.url}/status/?view=jobs")
        page, asked = opened.page, []
        page.on("request", lambda request: asked.append(request.url))
        page.fill("input[type=password]", "tenant")
        page.click("button[type=submit]")
        page.wait_for_selector("[role=alert]:has-text('choose a namespace')")
        page.fill("input[type=password]", "tenant")
        page.fill("input[type=text]", "vision")
        page.click("button[type=submit]")
        opened.live()
        names = page.eval_on_selector_all("td a.name", "found => found.map(a => a.textContent)")
        assert names
        assert all(name.startswith("vision/") for name in names)
        assert not [url for url in [*asked, page.url] if "tenant" in url]
        page.close()
