"""The files of the page, read once, with the headers that keep foreign content out of it."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import HTTPException
from fastapi.responses import Response

FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: Nothing but the page's own files, no inline script or style, and no text that becomes markup.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Asked for again each time, and answered with 304 while it is the same.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    content: bytes
    packed: bytes
    media_type: str
    tag: str


@cache
def files() -> Mapping[str, Asset]:
    """Return all files by their path below /status/; '' is the page itself."""
    found = {}
    for file in sorted(FOLDER.rglob("*")):
        if file.suffix in _TYPES:
            content = file.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            packed = gzip.compress(content, mtime=0)
            asset = Asset(content, packed, _TYPES[file.suffix], tag)
            found[file.relative_to(FOLDER).as_posix()] = asset
    return found | {"": found["index.html"]}


def response(path: str, headers: Mapping[str, str]) -> Response:
    """Return a file, or 304 where the browser has it."""
    asset = files().get(path)
    if asset is None:
        raise HTTPException(404, "the page has no such file")
    sent = {**HEADERS, "ETag": asset.tag}
    if headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=sent)
    content = asset.content
    if "gzip" in headers.get("accept-encoding", ""):
        content = asset.packed
        sent["Content-Encoding"] = "gzip"
    return Response(content, headers=sent, media_type=asset.media_type)
