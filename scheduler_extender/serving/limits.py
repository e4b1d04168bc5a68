"""What a caller may send: so many bytes, within so many seconds, and so many bytes at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_extender.serving.gate import client_of
from tandem.contracts.prediction import ErrorBody

#: A review of an object of etcd's greatest size (1.5 MiB) before and after a change fits.
MAX_BODY_BYTES = 4 * 2**20
BODY_WITHIN_S = 10.0
#: Bodies that are read or judged, of one client and of all.
BYTES_PER_CLIENT = 16 * 2**20
BYTES_IN_ALL = 64 * 2**20


@dataclass(eq=False, slots=True)
class Body:
    """A body on its way, and the deadline by which it must have come."""

    client: str
    deadline: asyncio.Timeout
    size: int = 0
    whole: bool = False


class Budget:
    """Bounds the bytes that are buffered: of one client, and of all clients together.

    Where all bytes are taken, the oldest unfinished body of the client that holds most is given up.
    Where a client is at its own bound, its largest unfinished body is given up for a smaller one,
    since an address may hide several clients; a larger one waits. So small bodies that come quickly
    never wait for large ones that are sent slowly.
    """

    def __init__(self, per_client: int = BYTES_PER_CLIENT, in_all: int = BYTES_IN_ALL) -> None:
        self._per_client, self._in_all = per_client, in_all
        self._bodies: dict[str, list[Body]] = {}
        self._held: dict[str, int] = {}
        self._released = asyncio.Event()

    @property
    def held(self) -> int:
        """Bytes of all bodies."""
        return sum(self._held.values())

    def begin(self, client: str, deadline: asyncio.Timeout) -> Body:
        """Return a body of a client, empty yet."""
        body = Body(client, deadline)
        self._bodies.setdefault(client, []).append(body)
        return body

    async def grow(self, body: Body, size: int) -> None:
        """Count `size` more bytes of a body, as soon as they may be kept."""
        while True:
            if self._held.get(body.client, 0) + size > self._per_client:
                self._give_up_a_larger_one(body, size)
                await self._until_released()
            elif self.held + size > self._in_all:
                self._give_up_one()
                await self._until_released()
            else:
                break
        body.size += size
        self._held[body.client] = self._held.get(body.client, 0) + size

    def end(self, body: Body) -> None:
        """Count the bytes of a body no more."""
        self._bodies[body.client].remove(body)
        self._held[body.client] = self._held.get(body.client, 0) - body.size
        if not self._bodies[body.client]:
            del self._bodies[body.client], self._held[body.client]
        released, self._released = self._released, asyncio.Event()
        released.set()

    async def _until_released(self) -> None:
        await self._released.wait()

    def _give_up_a_larger_one(self, than: Body, size: int) -> None:
        unfinished = [b for b in self._bodies[than.client] if not b.whole and b is not than]
        largest = max(unfinished, key=lambda each: each.size, default=than)
        if largest.size > than.size + size:
            self._give_up(largest)

    def _give_up_one(self) -> None:
        for client in sorted(self._held, key=lambda each: -self._held[each]):
            oldest = next((b for b in self._bodies[client] if not b.whole and b.size), None)
            if oldest is not None:
                self._give_up(oldest)
                return

    def _give_up(self, body: Body) -> None:
        """Let the deadline of a body pass; the next turn of the loop frees its bytes."""
        if not body.deadline.expired():
            body.deadline.reschedule(asyncio.get_running_loop().time())


class Limited:
    """Reads each request's body before the application sees it, as far as it may go.

    413 over `max_bytes`, 408 where it has not come `within_s` or had to give way to other clients;
    the connection is closed.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int = MAX_BODY_BYTES,
        within_s: float = BODY_WITHIN_S,
        budget: Budget | None = None,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._within_s = within_s
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._budget is None:  # it belongs to the loop that serves
            self._budget = Budget()
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > self._max_bytes:
            await self._refuse(413, f"the body is over {self._max_bytes} bytes", scope, send)
            return
        content = bytearray()
        body: Body | None = None
        try:
            try:
                async with asyncio.timeout(self._within_s) as deadline:
                    body = self._budget.begin(client_name(scope), deadline)
                    while True:
                        message = await receive()
                        if message["type"] != "http.request":
                            return  # the caller has gone
                        part = message.get("body", b"")
                        if len(content) + len(part) > self._max_bytes:
                            words = f"the body is over {self._max_bytes} bytes"
                            await self._refuse(413, words, scope, send)
                            return
                        await self._budget.grow(body, len(part))
                        content += part
                        if not message.get("more_body", False):
                            break
            except TimeoutError:
                words = (
                    f"the body has not come within {self._within_s:g} s, or other clients needed "
                    "the memory"
                )
                await self._refuse(408, words, scope, send)
                return
            body.whole = True
            read = False

            async def replayed() -> Message:
                nonlocal read
                if read:
                    return await receive()
                read = True
                return {"type": "http.request", "body": bytes(content), "more_body": False}

            await self._app(scope, replayed, send)
        finally:
            if body is not None:
                self._budget.end(body)

    async def _refuse(self, status: int, words: str, scope: Scope, send: Send) -> None:
        headers = {"connection": "close"}
        answer = JSONResponse(ErrorBody(error=words).wire(), status, headers=headers)
        await answer(scope, _nothing_more, send)


def client_name(scope: Scope) -> str:
    """Return by what the client of a request is counted."""
    return client_of(scope.get("client"))


async def _nothing_more() -> Message:
    return {"type": "http.disconnect"}
