"""The search of the documentation's site, in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.page import browser as driver

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]


def test_a_search_finds_the_page_of_a_term(tmp_path: Path) -> None:
    if why := driver.absent():
        pytest.skip(why)
    command = [sys.executable, ROOT / "deploy/site/build.py", "--version", "1.0"]
    subprocess.run([*map(str, command), "--output", str(tmp_path)], check=True)
    with driver.chromium() as browser:
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{tmp_path.as_uri()}/index.html")
        page.get_by_role("link", name="1.0").click()
        page.get_by_placeholder("Search").first.fill("preemption quota")
        page.keyboard.press("Enter")
        found = page.locator("#search-results li a")
        found.first.wait_for()
        assert any("queueing.html" in (each or "") for each in (
            link.get_attribute("href") for link in found.all()
        ))  # fmt: skip
        assert all(url.startswith("file:") for url in asked)
