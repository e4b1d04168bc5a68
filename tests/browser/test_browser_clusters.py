"""Every view in a real browser: on the demo, on a control plane with 200 jobs, at 5,000 nodes."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from controlplane_binaries import need_control_plane

from benchmarks.page.fleet import Fleet
from benchmarks.page.site import page_site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

#: Title, address, and the link to the first object of a list; each object has a view of its own.
LISTS = (
    ("Overview", "", ""),
    ("Jobs", "?view=jobs", "td a.name[href*='view=job&']"),
    ("GPUs", "?view=gpus", "td a.name[href*='view=gpu&']"),
    ("Nodes", "?view=nodes", "td a.name[href*='view=node&']"),
    ("Models", "?view=models", "td a.name[href*='view=model&']"),
)
#: What a predictor says of any model; without it the browser reports the answer 404.
PROFILE = {
    "namespace": "research", "name": "resnet50", "featureHash": "0" * 16, "observed": [],
    "features": {
        "flops": 4.1e9, "parameters": 25_557_032, "parameterBytes": 102_228_128, "nodes": 175,
        "activationBytes": 90_000_000, "largestTensorBytes": 3_211_264, "depth": 122,
        "tensorSkew": 0.08,
    },
}  # fmt: skip


def open_every_view(browser: Any, url: str, token: str = "", without: tuple[str, ...] = ()) -> None:
    """Open each list and its first object; the browser and axe complain about nothing."""
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect

    context = browser.new_context(ignore_https_errors=True)
    if token:
        context.add_init_script(f"sessionStorage.setItem('tandem.token', '{token}')")
    page, said = context.new_page(), []
    page.on("console", lambda each: said.append(each.text))
    page.on("pageerror", lambda error: said.append(str(error)))

    def live(title: str) -> None:
        page.wait_for_selector(".live:has-text('Live')", timeout=240_000)
        expect(page).to_have_title(re.compile(f"^{title}"))
        found = Axe().run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == [], page.url

    for title, address, first in LISTS:
        page.goto(f"{url}/status/{address}")
        live(title)
        if first and title not in without:
            page.wait_for_selector(first, timeout=60_000)
            page.click(f"{first} >> nth=0")
            expect(page).not_to_have_title(re.compile(f"^{title}"))
            live("")
            assert page.query_selector("main .empty:has-text('There is no such')") is None
    assert said == []
    context.close()


def test_every_view_opens_at_5000_nodes(browser: Any) -> None:
    fill = Fleet(5000, 10_000, 1, time.time()).fill
    with page_site(fill, profile=PROFILE, within_s=500) as site:
        open_every_view(browser, site.url)


@contextmanager
def demo() -> Iterator[str]:
    """Run the demo on a terminal; give the address of its page."""
    ours, theirs = pty.openpty()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("tandem")), "demo"],
        stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True, start_new_session=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "160"},
    )  # fmt: skip
    signal.signal(signal.SIGINT, handler)
    os.close(theirs)
    said, named = bytearray(), threading.Event()

    def read() -> None:
        while True:
            try:
                said.extend(os.read(ours, 65536))
            except OSError:
                return  # the other end is closed
            if b"/status/" in said:
                named.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        assert named.wait(240), said.decode(errors="replace")
        found = re.search(r"Status page: (\S+)/status/", said.decode(errors="replace"))
        assert found is not None
        yield found[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        os.close(ours)


def test_every_view_opens_on_the_demo(browser: Any) -> None:
    with demo() as url:
        open_every_view(browser, url)


@pytest.mark.controlplane
def test_every_view_opens_on_a_control_plane_with_200_jobs(browser: Any) -> None:
    from controlplane import wait_until
    from studies.plane.jobs import Gang
    from studies.plane.site import site
    from tandem.kube.resource import GPU_JOBS
    from tandem.policy.catalog import load_profile

    need_control_plane()
    with site(load_profile("tandem"), nodes=5, gpus=8) as found:
        plane = found.plane
        team = found.namespace("team")
        for number in range(200):
            found.submit(team, Gang(f"job-{number:03}", 0.0, 1, 600.0, 20, 40))
        path = GPU_JOBS.path(team)

        def planned() -> bool:
            phases = [
                (job.get("status") or {}).get("phase")
                for job in plane.http.get(path).raise_for_status().json()["items"]
            ]
            return len(phases) == 200 and "Running" in phases

        wait_until(planned, "there are 200 GPUJobs, and some run", timeout_s=240)
        account = ("serviceaccount", "looks")
        plane.kubectl("create", *account, "-n", "default")
        plane.kubectl(
            "create", "clusterrolebinding", "looks", "--clusterrole=cluster-admin",
            "--serviceaccount=default:looks",
        )  # fmt: skip
        token = plane.kubectl("create", "token", "looks", "-n", "default").strip()
        url = found.installation.public_url
        # No job here names a model.
        open_every_view(browser, url, token, without=("Models",))
