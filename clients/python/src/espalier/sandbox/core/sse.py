"""Server-sent events from bytes that come in any pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, List, Optional

from ..errors import ProtocolError

#: Bytes of one line, and of one event; more is no stream of ours.
LINE_BYTES_MAX = 32 << 20


@dataclass(frozen=True)
class Message:
    """An event with data. A comment, which only says that the service lives, has neither."""

    event: Optional[str]
    data: str
    id: Optional[str] = None


class Parser:
    """Of one connection: a new connection starts a new parser, since a cut event is never completed."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        self._clear()

    def _clear(self) -> None:
        self._event: Optional[str] = None
        self._id: Optional[str] = None
        self._data: List[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Message]:
        """The messages that are complete with this piece."""
        self._rest += piece
        while True:
            end, after = self._line_end()
            if end < 0:
                break
            line = bytes(self._rest[:end])
            del self._rest[:after]
            self._searched = 0
            message = self._line(line)
            if message is not None:
                yield message
        if len(self._rest) > LINE_BYTES_MAX:
            raise ProtocolError(f"a line of over {LINE_BYTES_MAX} bytes in a stream of events")

    def _line_end(self) -> "tuple[int, int]":
        """End of the first line and begin of the second: `\\n`, `\\r\\n` or `\\r`, which may be the half of `\\r\\n`."""
        newline = self._rest.find(b"\n", self._searched)
        feed = self._rest.find(b"\r", self._searched, newline if newline >= 0 else len(self._rest))
        if feed >= 0:
            if feed + 1 == len(self._rest):
                self._searched = feed
                return -1, -1
            return feed, feed + (2 if self._rest[feed + 1] == 10 else 1)
        if newline < 0:
            self._searched = len(self._rest)
        return newline, newline + 1

    def _line(self, line: bytes) -> Optional[Message]:
        if not line:
            if not self._data and self._event is None:
                return None
            message = Message(self._event or "message", "\n".join(self._data), self._id)
            self._clear()
            return message
        if line.startswith(b":"):
            return Message(None, "")
        name, _, value = line.partition(b":")
        text = (value[1:] if value.startswith(b" ") else value).decode("utf-8", "replace")
        if name == b"data":
            self._size += len(text)
            if self._size > LINE_BYTES_MAX:
                raise ProtocolError(f"an event of over {LINE_BYTES_MAX} bytes")
            self._data.append(text)
        elif name == b"event":
            self._event = text
        elif name == b"id":
            self._id = text
        return None
