"""A port that untrusted clients reach: how many connections an address may have, and for how long.

An address that opens connections quickly waits for its TLS handshakes; no other address waits then.
Where all connections are taken, the address that has most of them loses its oldest one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)

_BATCH = 32  # connections accepted in one turn of the loop
_ADDRESSES_KEPT = 4096
_PAUSE_S = 0.1  # where the process has no descriptor left
_HANDSHAKE_S = 5.0
_HEAD_S = 10.0
_REQUEST_S = 60.0
#: Go's clients keep an idle connection for 90 s; a server that closes it first fails some requests.
KEEP_ALIVE_S = 120
_HEAD_BYTES = 64 * 2**10
_PIPELINED = 4  # requests of one connection that wait for their turn


@dataclass(frozen=True, slots=True)
class Limits:
    """What one address may have, and all of them together. `rate`: new connections a second."""

    per_address: int
    total: int
    rate: float
    burst: float
    longest_wait_s: float = 2.0


@dataclass(eq=False, slots=True)
class Entry:
    """A connection: whose it is, and when it has to have come further (monotonic seconds)."""

    address: str
    due_s: float
    close: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Address:
    tokens: float
    at_s: float
    entries: dict[Entry, None] = field(default_factory=dict)  # oldest first


class Turnstile:
    """Counts the connections of each address. Pure but for the clock."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._known: OrderedDict[str, _Address] = OrderedDict()
        self.open = 0

    def enter(self, address: str) -> tuple[Entry, float] | None:
        """Return a new entry and for how many seconds it waits; None where it is refused."""
        limits, now = self._limits, self._clock()
        known = self._of(address, now)
        known.tokens = min(limits.burst, known.tokens + (now - known.at_s) * limits.rate)
        known.at_s = now
        wait_s = max(0.0, (1.0 - known.tokens) / limits.rate)
        if len(known.entries) >= limits.per_address or wait_s > limits.longest_wait_s:
            return None
        known.tokens -= 1.0
        if self.open >= limits.total:
            self._oldest_of_the_largest().close()
        entry = Entry(address, now + wait_s + _HANDSHAKE_S)
        known.entries[entry] = None
        self.open += 1
        return entry, wait_s

    def leave(self, entry: Entry) -> None:
        """Forget a connection; a second time changes nothing."""
        known = self._known.get(entry.address)
        if known is not None and entry in known.entries:
            del known.entries[entry]
            self.open -= 1

    def sweep(self) -> None:
        """Close what has not come further in time."""
        now = self._clock()
        late = [e for known in self._known.values() for e in known.entries if e.due_s < now]
        for entry in late:
            entry.close()
            self.leave(entry)

    def _of(self, address: str, now: float) -> _Address:
        known = self._known.get(address)
        if known is None:
            known = self._known[address] = _Address(self._limits.burst, now)
            while len(self._known) > _ADDRESSES_KEPT:
                idle = next((a for a, each in self._known.items() if not each.entries), None)
                if idle is None or idle == address:
                    break
                del self._known[idle]
        self._known.move_to_end(address)
        return known

    def _oldest_of_the_largest(self) -> Entry:
        largest = max(self._known.values(), key=lambda each: len(each.entries))
        oldest = next(iter(largest.entries))
        self.leave(oldest)
        return oldest


def client_of(peer: object) -> str:
    """Return by what a client is counted: its IPv4 address, or its IPv6 network of 64 bits."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class Gate:
    """Accepts the connections of a listening socket, on the running loop, until it is closed.

    `make` returns the protocol of a connection; `tls` the context, None for plain text.
    """

    def __init__(
        self,
        listener: socket.socket,
        limits: Limits,
        make: Callable[[Turnstile, Entry], asyncio.Protocol],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self.turnstile = Turnstile(limits)
        self._listener, self._make, self._tls = listener, make, tls
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._listen()
        self._sweeping = self._loop.create_task(self._sweep())

    def close(self) -> None:
        """Accept no more; what is open goes on."""
        self._loop.remove_reader(self._listener.fileno())
        self._sweeping.cancel()
        self._listener.close()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_BATCH):
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection accepted error=%s", error)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_PAUSE_S, self._listen)
                return
            entered = self.turnstile.enter(client_of(peer))
            if entered is None:
                connection.close()
                continue
            entry, wait_s = entered
            task = self._loop.create_task(self._begin(connection, entry, wait_s))
            entry.close = partial(_cancel, task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _begin(self, connection: socket.socket, entry: Entry, wait_s: float) -> None:
        """Make the handshake when it is the connection's turn; then its protocol goes on alone."""
        begun = False
        try:
            if wait_s:
                await asyncio.sleep(wait_s)
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._tls()
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: self._make(self.turnstile, entry),
                connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else _HANDSHAKE_S,
            )
            entry.close = transport.abort
            begun = True
        except (OSError, ssl.SSLError, TimeoutError):
            pass  # a client that is none of ours, or that has gone
        finally:
            if not begun:
                self.turnstile.leave(entry)
                connection.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.turnstile.sweep()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


class Guarded(HttpToolsProtocol):
    """HTTP/1.1 of which heads are bounded, and each request ends within a minute.

    uvicorn bounds neither: a head without end, or thousands of requests in one packet, would fill
    the memory.
    """

    turnstile: Turnstile
    entry: Entry
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        self.entry.close = transport.abort
        # uvicorn's own default of 5 s is shorter than the API server's 90 s.
        self.timeout_keep_alive = KEEP_ALIVE_S
        self._within(_HEAD_S)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place."""
        self.turnstile.leave(self.entry)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head has become too long."""
        if self._in_head:
            if self._head_bytes == 0:
                self._within(_HEAD_S)
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES + len(data):
                self.transport.abort()
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Begin the request, unless too many wait on this connection."""
        self._in_head, self._head_bytes = False, 0
        self._within(_REQUEST_S)
        if len(self.pipeline) >= _PIPELINED:
            self.transport.abort()
            return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Await the next head."""
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Keep the connection for longer than its client does."""
        self._within(KEEP_ALIVE_S)
        with contextlib.suppress(AttributeError):  # the connection may be gone
            super().on_response_complete()

    def _within(self, seconds: float) -> None:
        self.entry.due_s = time.monotonic() + seconds
