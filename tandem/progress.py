"""How fast a training job goes, told to the agent of its node: call `step()` once an iteration.

Optional, and nothing but a counter where `TANDEM_AGENT_URL` is not set. Only the standard library
is used, so that the file can be copied into an image that does not have Tandem.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

#: Where the agent listens (`http://HOST_IP:9405`), and the token that says which pod we are.
AGENT_URL = "TANDEM_AGENT_URL"
TOKEN_FILE = "TANDEM_TOKEN_FILE"  # noqa: S105 - the name of a variable
TOKEN_PATH = "/var/run/secrets/tandem.gpu/token"  # noqa: S105 - a path
EVERY_S = 10.0
TIMEOUT_S = 2.0

_count = 0
_lock = threading.Lock()
_thread: threading.Thread | None = None
#: Called at each step; `profile` listens here.
listeners: list[Callable[[], None]] = []


def step(iterations: int = 1) -> None:
    """Note that `iterations` more are done; returns at once, never fails."""
    global _count, _thread
    with _lock:
        _count += iterations
        agent = os.environ.get(AGENT_URL)
        if _thread is None and agent:
            _thread = threading.Thread(target=_tell, args=[agent], name="tandem", daemon=True)
            _thread.start()
    for listener in listeners:
        listener()


def profile() -> AbstractContextManager[Any]:
    """Record active and idle GPU time of the steps within; nothing without PyTorch and CUDA."""
    try:
        from tandem.cuda_profile import recording
    except ImportError:  # this file alone, in an image without Tandem
        return nullcontext()
    return recording(listeners)


def _tell(agent: str) -> None:
    global _count
    began = time.monotonic()
    while True:
        time.sleep(EVERY_S)
        now = time.monotonic()
        with _lock:
            done, _count = _count, 0
        try:
            _post(agent, {"iterations": done, "seconds": now - began})
        except (OSError, ValueError) as error:  # away, refused, no token: never the job's trouble
            logging.getLogger(__name__).debug("progress not told error=%r", str(error))
        began = now


def _post(agent: str, body: dict[str, float]) -> None:
    token = Path(os.environ.get(TOKEN_FILE, TOKEN_PATH)).read_text()
    headers = {"Authorization": f"Bearer {token.strip()}", "Content-Type": "application/json"}
    url = agent.rstrip("/") + "/v1/progress"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - the URL is the cluster's own
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - as above
        pass
