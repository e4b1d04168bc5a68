"""A line that is cut: what was sent into it comes out later, and new lines are as any."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from controlplane import wait_until
from controlplane.wire import Wire


class Listener:
    """Keeps what callers send, answers each piece in capitals, and knows where they come from."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.callers: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, (address, _) = self._server.accept()
            except OSError:
                return
            self.callers.append(address)
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(ConnectionResetError):
            while piece := caller.recv(1024):
                self.heard.append(piece)
                caller.sendall(piece.upper())


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.close()


def call(wire: Wire) -> socket.socket:
    return socket.create_connection(("127.0.0.1", wire.port), 60)


def test_everything_passes_from_the_address_that_was_asked_for(listener: Listener) -> None:
    with Wire(listener.port, source="127.0.0.2") as wire, call(wire) as caller:
        caller.sendall(b"one")
        assert caller.recv(1024) == b"ONE"
    assert listener.callers == ["127.0.0.2"]


def test_what_was_held_arrives_even_if_its_sender_has_gone(listener: Listener) -> None:
    with Wire(listener.port) as wire:
        caller = call(wire)
        caller.sendall(b"one")
        assert caller.recv(1024) == b"ONE"
        wire.hold()
        caller.sendall(b"late")
        wait_until(wire.held_bytes, "it is under way")
        caller.close()
        assert listener.heard == [b"one"]
        wire.let_go()
        wait_until(lambda: listener.heard == [b"one", b"late"], "it has arrived")


def test_a_muted_connection_stays_silent_and_another_does_not(listener: Listener) -> None:
    with Wire(listener.port) as wire, call(wire) as silent:
        silent.sendall(b"one")
        assert silent.recv(1024) == b"ONE"
        wire.mute()
        silent.sendall(b"two")
        with call(wire) as other:
            other.sendall(b"three")
            assert other.recv(1024) == b"THREE"
        assert listener.heard == [b"one", b"three"]
