"""Where a token may be sent."""

from __future__ import annotations

from urllib.parse import urlsplit


def stays_secret(url: str) -> bool:
    """Say whether a token sent to `url` stays secret on its way: by TLS, or on loopback."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or parts.hostname in ("127.0.0.1", "::1", "localhost")
