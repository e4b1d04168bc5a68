"""How fast a training job goes, told to the agent of its node: call `step()` once an iteration.

Optional, and nothing but a counter where `TANDEM_AGENT_URL` is not set. Only the standard library
is used, so that the file can be copied into an image that does not have Tandem.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

#: Where the agent listens (`http://HOST_IP:9405`), and the token that says which pod we are.
AGENT_URL, TOKEN_FILE = "TANDEM_AGENT_URL", "TANDEM_TOKEN_FILE"
TOKEN_PATH = "/var/run/secrets/tandem.gpu/token"  # noqa: S105 - a path
EVERY_S, TIMEOUT_S = 10.0, 2.0
#: What a container writes here is its last word: Kubernetes keeps it in the pod's status.
TERMINATION_LOG = "/dev/termination-log"

_done, _thread, _lock = 0, None, threading.Lock()
listeners: list[Any] = []  # called at each step; `profile` listens here


def step(iterations: int = 1) -> None:
    """Note that `iterations` more are done; returns at once, never fails."""
    global _done, _thread
    with _lock:
        _done += iterations
        if _thread is None and os.environ.get(AGENT_URL):
            _watch_memory()
            _thread = threading.Thread(target=_tell, name="tandem", daemon=True)
            _thread.start()
    for listener in listeners:
        listener()


def _watch_memory() -> None:
    """Say in the container's last word that the process ended for want of GPU memory."""
    before = sys.excepthook

    def ends(kind: type[BaseException], error: BaseException, trace: Any) -> None:  # noqa: ANN401
        name = f"{kind.__module__}.{kind.__qualname__}"
        if "OutOfMemoryError" in name or "CUDA out of memory" in str(error):
            with suppress(OSError):
                Path(TERMINATION_LOG).write_text(f"CUDA out of memory: {name}: {error}"[:4000])
        before(kind, error, trace)

    sys.excepthook = ends


def _tell() -> None:
    told, since = 0, time.monotonic()
    while True:
        time.sleep(EVERY_S)
        done, now = _done, time.monotonic()
        with suppress(Exception):  # away, refused, no token: never the job's trouble
            _post({"iterations": done - told, "seconds": now - since})
        told, since = done, now


def _post(body: dict[str, float]) -> None:
    token = Path(os.environ.get(TOKEN_FILE, TOKEN_PATH)).read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = os.environ[AGENT_URL].rstrip("/") + "/v1/progress"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - the cluster's own
    urllib.request.urlopen(request, timeout=TIMEOUT_S).close()  # noqa: S310 - as above


def profile() -> AbstractContextManager[Any]:
    """Record active and idle GPU time of the steps within; nothing without PyTorch and CUDA."""
    try:
        from tandem.cuda_profile import recording
    except ImportError:  # this file alone, in an image without Tandem
        return nullcontext()
    return recording(listeners)
