"""Length-prefixed messages over a socket, none larger than `MAX_BYTES`, none later than a deadline."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from coursekit.checks.codec import MAX_BYTES, BadMessage, from_bytes, to_bytes

_LENGTH = struct.Struct("!I")


class Closed(Exception):
    """The other end closed the connection."""


class OutOfTime(Exception):
    """The deadline passed."""


class Channel:
    """One end of the socket. `deadline` (of `time.monotonic`) bounds every wait; None waits forever."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.deadline: float | None = None

    def send(self, message: Any) -> None:
        """Send one message."""
        data = to_bytes(message)
        if len(data) > MAX_BYTES:
            raise BadMessage(f"a message of {len(data)} bytes is too large")
        try:
            self._await()
            self.socket.sendall(_LENGTH.pack(len(data)) + data)
        except TimeoutError:
            raise OutOfTime from None
        except OSError:
            raise Closed from None

    def receive(self) -> Any:
        """Wait for one message."""
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if size > MAX_BYTES:
            raise BadMessage(f"a message of {size} bytes is too large")
        return from_bytes(self._read(size))

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            self._await()
            try:
                part = self.socket.recv(min(size, 1 << 20))
            except TimeoutError:
                raise OutOfTime from None
            except OSError:
                raise Closed from None
            if not part:
                raise Closed
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _await(self) -> None:
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise OutOfTime
            self.socket.settimeout(left)
