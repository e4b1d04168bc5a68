"""The agent's port under attack: connections that stay, and lengths that are no numbers."""

import contextlib
import socket
import threading
import time
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from node_agent import server as module
from node_agent.progress import Progress
from node_agent.server import MAX_CONNECTIONS, AgentServer


@pytest.fixture
def port():
    server = AgentServer("127.0.0.1", 0, lambda: "", CollectorRegistry(), Progress(None))
    server.start()
    yield server.port
    server.stop()


def connect(port, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def ended(connection):
    """Return whether the server has ended the connection, within half a minute."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


@pytest.mark.slow
def test_connections_that_stay_take_a_bounded_number_of_threads(port):
    before = threading.active_count()
    held = [connect(port) for _ in range(3 * MAX_CONNECTIONS)]
    for one in held:
        with contextlib.suppress(OSError):
            one.sendall(b"GET /heal")
    # The oldest of the flood have to go, and their threads with them.
    assert all(ended(one) for one in held[:MAX_CONNECTIONS])
    until = time.monotonic() + 60
    while threading.active_count() > before + MAX_CONNECTIONS and time.monotonic() < until:
        time.sleep(0.05)
    assert threading.active_count() <= before + MAX_CONNECTIONS
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
        assert answer.status == 200
    for one in held:
        one.close()


@pytest.mark.long
def test_a_flood_ends_its_own_connections_and_not_the_kubelets(port):
    kubelet = connect(port, "127.0.0.2")
    kubelet.sendall(b"GET /healthz HTTP/1.1\r\nHost: agent\r\n")
    held = [connect(port) for _ in range(2 * MAX_CONNECTIONS)]
    assert ended(held[0])
    kubelet.sendall(b"\r\n")
    assert kubelet.recv(15) == b"HTTP/1.1 200 OK"
    for one in (kubelet, *held):
        one.close()


@pytest.mark.long
def test_a_client_that_sends_a_byte_now_and_then_is_dropped(port, monkeypatch):
    monkeypatch.setattr(module, "CONNECTION_MAX_S", 0.5)
    slow = connect(port)
    slow.sendall(b"GET /healthz HTTP/1.1\r\n")
    until = time.monotonic() + 60
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < until:
            slow.sendall(b"a: b\r\n")
            time.sleep(0.05)
    assert time.monotonic() < until
    slow.close()


@pytest.mark.long
@pytest.mark.parametrize("length", ["²", "9" * 5000, "-1", "1e3", ""])
def test_a_length_that_is_no_small_number_is_refused(port, length):
    with connect(port) as client:
        head = f"POST /v1/progress HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
        client.sendall(head.encode("latin-1"))
        assert client.recv(12) == b"HTTP/1.1 413"
