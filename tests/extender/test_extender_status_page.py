"""The page's files: what they hold, how they are served, and where its libraries come from."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from scheduler_extender.serving.readers import everybody
from scheduler_extender.serving.status import assets
from scheduler_extender.serving.status.publisher import Publisher
from scheduler_extender.serving.status.routes import status_router

OURS = sorted(path for path in assets.FOLDER.glob("*") if path.suffix in (".js", ".html", ".css"))
VENDORED = json.loads((Path(__file__).parents[2] / "deploy/page/vendor.json").read_text())


def ask(path: str, method: str = "GET", **headers: str) -> httpx.Response:
    async def script() -> httpx.Response:
        async def nothing(*_: object) -> None:
            return None

        app = FastAPI()
        router = status_router(Publisher(None), everybody, nothing, nothing)  # type: ignore[arg-type]
        app.include_router(router)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(script())


def test_the_page_takes_less_than_300_kilobytes() -> None:
    assert sum(len(each.content) for name, each in assets.files().items() if name) < 300_000


def test_the_policy_allows_nothing_but_the_page_s_own_files() -> None:
    answer = ask("/status/")
    policy = dict(
        each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    for kind in ("script-src", "style-src", "connect-src", "img-src"):
        assert policy[kind] == "'self'", "neither 'unsafe-inline' nor another host"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("file", OURS, ids=lambda path: path.name)
def test_no_file_makes_markup_of_text_or_names_another_host(file: Path) -> None:
    text = file.read_text()
    for forbidden in (
        "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
        "setAttribute(\"style", "cssText",
    ):  # fmt: skip
        assert forbidden not in text, forbidden
    assert not re.search(r"\b(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w.-]+\.\w", text)


def test_the_page_has_no_inline_script_style_or_handler() -> None:
    text = (assets.FOLDER / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert "<style" not in text
    assert re.findall(r"\s(?:on\w+|style)=", text) == []


def test_every_file_that_a_file_loads_is_served() -> None:
    for file in assets.FOLDER.rglob("*.js"):
        for name in re.findall(r"""from\s*["'](\.[^"']+)["']""", file.read_text()):
            path = (file.parent / name).resolve().relative_to(assets.FOLDER.resolve()).as_posix()
            assert path in assets.files(), (file.name, name)
    for name in re.findall(r'(?:href|src)="([^"]+)"', assets.files()[""].content.decode()):
        assert ask(f"/status/{name}").status_code == 200, name


def test_files_are_asked_for_again_and_not_sent_twice() -> None:
    first = ask("/status/app.js")
    again = ask("/status/app.js", **{"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert ask("/status/app.js", **{"accept-encoding": "gzip"}).content == first.content
    assert ask("/status/app.js", "HEAD").status_code == 200
    assert ask("/status/../config.py").status_code == 404
    assert ask("/status/nothing.js").status_code == 404


def test_a_browser_that_names_no_path_is_sent_to_the_page() -> None:
    for path in ("/", "/status"):
        answer = ask(path)
        assert (answer.status_code, answer.headers["location"]) == (307, "status/")


@pytest.mark.parametrize("name", sorted(VENDORED))
def test_a_library_is_what_its_package_has(name: str) -> None:
    """`python deploy/page/vendor.py --check` compares with the package itself."""
    for file, wanted in VENDORED[name]["sha256"].items():
        content = (assets.FOLDER / "vendor" / file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == wanted, file
    assert VENDORED[name]["licence"] in ("MIT", "Apache-2.0")
