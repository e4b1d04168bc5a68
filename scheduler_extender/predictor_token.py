"""By what the predictor knows the extender."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tandem.kube.client import KubeClient
from tandem.kube.memory import MemoryCluster
from tandem.kube.secrecy import stays_secret

_TOKEN_KEPT_S = 60.0


def predictor_token(
    url: str | None, file: Path | None, api: KubeClient | MemoryCluster
) -> Callable[[], str]:
    """Return by what the predictor knows us: a token for it alone.

    Without one, the token for the API server, where no other process can read it on its way.
    """
    if file is not None:
        return token_of_file(file)
    secret = url is not None and stays_secret(url)
    return api.bearer_token if secret and isinstance(api, KubeClient) else lambda: ""


def token_of_file(path: Path) -> Callable[[], str]:
    """Return a reader of a token that kubelet renews; read at most once a minute."""
    kept: tuple[float, str] = (float("-inf"), "")

    def token() -> str:
        nonlocal kept
        if time.monotonic() - kept[0] > _TOKEN_KEPT_S:
            kept = time.monotonic(), path.read_text().strip()
        return kept[1]

    return token
