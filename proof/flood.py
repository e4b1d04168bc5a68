"""What three requests of an unauthenticated client cost the extender.

`python proof/flood.py --public https://HOST:PORT --health http://HOST:PORT/healthz --pid PID`

During each attack a probe asks `--health` every 50 ms. The output is JSON. For each attack it has
the slowest answer of the probe, the largest resident memory of each process (`--pid` may be given
several times), and status, size and time of the answers.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from controlplane.usage import resident_mib

HALF_SENT = 60
_ANNOUNCED_BYTES = 4 * 2**20
Answer = dict[str, Any]


def review(pod: dict[str, Any]) -> bytes:
    """Return an AdmissionReview that creates a pod, as the API server sends it."""
    request = {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "tenant",
        "operation": "CREATE", "object": pod, "userInfo": {"username": "tenant"},
    }  # fmt: skip
    return json.dumps({"request": request}, separators=(",", ":")).encode()


def unknown_annotations(size: int = 2**19) -> bytes:
    """Return a review of `size` bytes of annotations that do not exist."""
    count = size // 41
    annotations = {f"tandem.gpu/memorie-utilisatio-{i:06d}": "" for i in range(count)}
    limits = {"limits": {"tandem.gpu/gpu": "1"}}
    return review(
        {"metadata": {"annotations": annotations}, "spec": {"containers": [{"resources": limits}]}}
    )


def malformed_containers(size: int = 230 * 2**10) -> bytes:
    """Return a review of `size` bytes of containers that are none."""
    return review({"spec": {"containers": [0] * (size // 2)}})


class Watch:
    """Asks for the health every 50 ms, and reads the memory of processes, until it is left."""

    def __init__(self, health: str, pids: list[int]) -> None:
        self._health, self._pids = health, pids
        self._over = threading.Event()
        self.slowest_s = 0.0
        self.failed = 0
        self.largest_mib = dict.fromkeys(pids, 0.0)
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._ask, self._read)
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        with httpx.Client(trust_env=False, verify=False, timeout=30) as client:
            while not self._over.wait(0.05):
                start = time.perf_counter()
                try:
                    fine = client.get(self._health).is_success
                except httpx.HTTPError:
                    fine = False
                self.failed += not fine
                self.slowest_s = max(self.slowest_s, time.perf_counter() - start)

    def _read(self) -> None:
        while not self._over.wait(0.01):
            for pid in self._pids:
                with suppress(OSError):
                    self.largest_mib[pid] = max(self.largest_mib[pid], resident_mib(pid))


def post(public: str, body: bytes, source: str = "") -> list[Answer]:
    """Send one review, from the address `source`."""
    start = time.perf_counter()
    transport = httpx.HTTPTransport(verify=False, local_address=source or None)
    try:
        with httpx.Client(trust_env=False, transport=transport, timeout=60) as client:
            answer = client.post(
                f"{public}/mutate", content=body, headers={"content-type": "application/json"}
            )
        status, size = answer.status_code, len(answer.content)
    except httpx.HTTPError as error:
        status, size = type(error).__name__, 0  # type: ignore[assignment] # a word for the report
    return [{"status": status, "bytes": size, "seconds": round(time.perf_counter() - start, 3)}]


def half_sent(public: str, source: str = "", *, held_s: float = 5.0) -> list[Answer]:
    """Open connections that announce 4 MiB each and send all but the last byte."""
    url = urlsplit(public)
    assert url.hostname is not None
    head = (
        f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {_ANNOUNCED_BYTES}\r\n\r\n"
    ).encode()
    body = b" " * (_ANNOUNCED_BYTES - 1)
    opened: list[socket.socket] = []

    def send(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.settimeout(held_s)
            connection.sendall(head + body)

    for _ in range(HALF_SENT):
        with suppress(OSError):
            connection = socket.create_connection(
                (url.hostname, url.port), timeout=10, source_address=(source, 0)
            )
            if url.scheme == "https":
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                connection = context.wrap_socket(connection)
            opened.append(connection)
    threads = [threading.Thread(target=send, args=(each,), daemon=True) for each in opened]
    for thread in threads:
        thread.start()
    time.sleep(held_s)
    for connection in opened:
        connection.close()
    return [{"connections": len(opened)}]


def measure(public: str, health: str, pids: list[int], source: str = "") -> dict[str, Any]:
    """Return what each attack costs, by its name; the attacks come from the address `source`."""
    attacks: dict[str, Callable[[], list[Answer]]] = {
        "unknown annotations, 0.5 MiB": lambda: post(public, unknown_annotations(), source),
        "malformed containers, 0.23 MiB": lambda: post(public, malformed_containers(), source),
        f"{HALF_SENT} half-sent bodies of 4 MiB": lambda: half_sent(public, source),
    }
    found: dict[str, Any] = {}
    for name, attack in attacks.items():
        with Watch(health, pids) as watch:
            time.sleep(0.5)
            before = dict(watch.largest_mib)
            answers = attack()
            time.sleep(0.2)
        found[name] = {
            "slowest_health_s": round(watch.slowest_s, 3),
            "failed_health": watch.failed,
            "memory_before_mib": [round(each, 1) for each in before.values()],
            "memory_largest_mib": [round(each, 1) for each in watch.largest_mib.values()],
            "answers": answers,
        }
    return found


def main() -> None:
    """Print the measurements as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--public", required=True)
    parser.add_argument("--health", required=True)
    parser.add_argument("--pid", type=int, action="append", default=[])
    given = parser.parse_args()
    print(json.dumps(measure(given.public, given.health, given.pid), indent=1))


if __name__ == "__main__":
    main()
