"""Edges of the sandbox's wire and of the limit on bodies."""

from __future__ import annotations

import asyncio
import json
import struct
import time

import pytest

from predictor.errors import GraphError
from predictor.service.http import BodyTooLargeError, _LimitedBody
from predictor.service.sandbox import _MAX_ANSWER_BYTES, _receive_answer


class Parts:
    """A connection that delivers its bytes in these parts, and then ends."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = [*parts, b""]

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def recv(self, most: int) -> bytes:
        return self._parts.pop(0)


BODY = json.dumps({"nodes": 3}).encode()
HEAD = struct.pack("!Q", len(BODY))


def received(*parts: bytes) -> dict[str, object] | None:
    return _receive_answer(Parts(*parts), time.monotonic() + 60)  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", range(1, len(HEAD + BODY)))
def test_an_answer_is_read_wherever_it_is_cut(cut: int) -> None:
    whole = HEAD + BODY
    assert received(whole[:cut], whole[cut:]) == {"nodes": 3}


@pytest.mark.parametrize("end", [0, 3, 8, len(HEAD + BODY) - 1])
def test_an_answer_that_ends_early_is_none(end: int) -> None:
    assert received((HEAD + BODY)[:end]) is None


def test_an_answer_of_the_largest_size_is_read_and_a_larger_one_refused() -> None:
    most = _MAX_ANSWER_BYTES - 8
    largest = b" " * (most - len(BODY)) + BODY
    assert received(struct.pack("!Q", most), largest) == {"nodes": 3}
    with pytest.raises(GraphError):
        received(struct.pack("!Q", most + 1))


@pytest.mark.parametrize(("parts", "over"), [((4, 6), False), ((10,), False), ((4, 7), True)])
def test_a_body_of_the_limit_is_read_and_one_of_a_byte_more_is_not(
    parts: tuple[int, ...], over: bool
) -> None:
    messages = [{"type": "http.request", "body": b"x" * size} for size in parts]

    async def receive() -> dict:
        return messages.pop(0)

    body = _LimitedBody(receive, 10, already_over=False)  # type: ignore[arg-type]

    async def read() -> None:
        while messages:
            await body.receive()

    if over:
        with pytest.raises(BodyTooLargeError):
            asyncio.run(read())
    else:
        asyncio.run(read())
    assert body.over is over
