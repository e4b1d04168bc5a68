"""A TCP line that a test may cut: between a service and the API server, without touching either."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field

from tandem.local.processes import free_port

_CHUNK = 65_536
_POLL_S = 0.05
_CONNECT_S = 5.0
#: What was held back is answered, or not, before the other side learns that its caller has gone.
_LINGER_S = 3.0


@dataclass(eq=False)
class _Connection:
    near: socket.socket
    far: socket.socket
    near_ended_s: float = 0.0  # when the caller hung up; 0 while it has not
    muted: bool = False
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def close(self) -> None:
        self.selector.close()
        for side in (self.near, self.far):
            side.close()


class Wire:
    """Forwards TCP connections from a port of its own to `port`, all on 127.0.0.1.

    `source` is the loopback address from which `port` is reached: an audit log then tells who came
    by which wire. While held, the wire is silent: nothing passes, nothing is refused, and what was
    sent into it comes out at the other end when it is let go, even if the sender has died.
    """

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self._target = port
        self._source = source
        self._passing = threading.Event()
        self._passing.set()
        self._closed = threading.Event()
        self._connections: set[_Connection] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", free_port()), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=f"wire-{self.port}", daemon=True).start()

    def hold(self) -> None:
        """Let nothing pass any more, in either direction."""
        self._passing.clear()

    def let_go(self) -> None:
        """Let everything pass again, first of all what was held back."""
        self._passing.set()

    def mute(self) -> None:
        """Let nothing pass by the connections that there are, for ever; new ones are as any."""
        with self._lock:
            for each in self._connections:
                each.muted = True

    def held_bytes(self) -> int:
        """Return how much callers have sent that waits to be let go."""
        total = 0
        with self._lock:
            for each in self._connections:
                with contextlib.suppress(OSError):
                    total += len(each.near.recv(_CHUNK, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return total

    def close(self) -> None:
        """Close the port and every connection."""
        self._closed.set()
        self._passing.set()
        self._listener.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._passing.wait()
        try:
            far = socket.create_connection(
                ("127.0.0.1", self._target), _CONNECT_S, source_address=(self._source, 0)
            )
        except OSError:
            near.close()  # no server listens there: the caller sees a connection reset
            return
        connection = _Connection(near, far)
        with self._lock:
            self._connections.add(connection)
        try:
            self._pump(connection)
        except OSError:
            pass  # one side has gone; so goes the other
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _pump(self, connection: _Connection) -> None:
        near, far, selector = connection.near, connection.far, connection.selector
        for side in (near, far):
            side.settimeout(None)
            selector.register(side, selectors.EVENT_READ)
        while not self._closed.is_set():
            self._passing.wait()
            if connection.muted:
                time.sleep(_POLL_S)
                continue
            for key, _ in selector.select(_POLL_S):
                side = near if key.fileobj is near else far
                if connection.muted or not self._passing.is_set():
                    break
                chunk = side.recv(_CHUNK)
                if chunk:
                    (far if side is near else near).sendall(chunk)
                elif side is near:
                    selector.unregister(near)
                    connection.near_ended_s = time.monotonic()
                else:
                    return
            ended = connection.near_ended_s
            if ended and time.monotonic() - ended > _LINGER_S:
                return
