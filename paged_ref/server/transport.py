"""Reading requests and sending streams with limits, and noticing clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError

READ_SECONDS = 30.0  # for a whole body
SEND_SECONDS = 30.0  # for one piece of a stream
T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed its connection."""


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body.

    Raises:
        ApiError: 413 for a body of more than `limit` bytes, 408 for one that does not come within `READ_SECONDS`.
        ClientLeft: the client left meanwhile.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    parts.append(part)
                elif (
                    size > 16 * limit
                ):  # up to here it is read and thrown away, so that the client sees the reply
                    break
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {READ_SECONDS:.0f} s") from error
    except ClientDisconnect as error:
        raise ClientLeft from error
    if size > limit:
        raise ApiError(413, f"the body has more than {limit} bytes", code="body_too_large")
    return b"".join(parts)


async def or_leave(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns.

    Raises:
        ClientLeft: the client left first; `work` is cancelled.
    """
    task, left = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        for one in (task, left):
            one.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await one


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events that ends when the client leaves or stops reading.

    Args:
        chunks: the events.
        on_end: called once, however the stream ends.
    """

    def __init__(self, chunks: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__()
        self.chunks, self.on_end = chunks, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream (ASGI)."""
        try:
            with suppress(ClientLeft, TimeoutError):
                await or_leave(receive, self._send(send))
        finally:
            self.on_end()

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        headers.append((b"x-accel-buffering", b"no"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in self.chunks:
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
