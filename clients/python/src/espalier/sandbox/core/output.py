"""A command's output put together again from streams that were cut: every byte once, and what is lost is named."""

from __future__ import annotations

import base64
import binascii
import codecs
import json
from typing import Any, Dict, Iterator, List, Mapping

from ..errors import Lost, ProtocolError, problem_error
from ..model import Ended, Event, Gap, Output, Result, Started
from .sse import Message

STREAMS = ("stdout", "stderr")


class Assembly:
    """What of one command's output has come, from offsets named at its begin."""

    def __init__(self, stdout_from: int = 0, stderr_from: int = 0) -> None:
        self.at: Dict[str, int] = {"stdout": stdout_from, "stderr": stderr_from}
        #: The service has said that it begins.
        self.started = False
        #: Something of the command has come, so that there is one: from now on it is attached to. Until then its start is sent
        #: again, which with the same id is the same command.
        self.certain = False
        #: Nothing follows.
        self.ended = False
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in STREAMS}

    def take(self, message: Message) -> Iterator[Event]:
        """What is new in a message; nothing where all of it was here before."""
        if message.event is None or self.ended:
            return
        try:
            data: Any = json.loads(message.data)
        except ValueError as error:
            raise ProtocolError(f"event {message.event}: no JSON: {message.data[:100]!r}") from error
        if not isinstance(data, dict):
            raise ProtocolError(f"event {message.event}: {message.data[:100]!r}")
        if message.event == "started":
            if not self.started:
                self.started = True
                yield Started(str(data.get("id", "")))
        elif message.event in STREAMS:
            yield from self.output(message.event, _number(data, "offset"), _bytes(data))
        elif message.event == "gap":
            yield from self.gap(str(data.get("stream")), _number(data, "from"), _number(data, "to"))
        elif message.event == "ended":
            yield from self.end(Result.read(data))
        elif message.event == "error":
            raise problem_error(data)

    def output(self, stream: str, offset: int, data: bytes) -> Iterator[Event]:
        """Bytes at their place. Some may have come before, and some may be missing without a word about it."""
        at = self.at[stream]
        self.certain = True
        if offset > at:
            yield from self.gap(stream, at, offset)
        elif offset < at:
            data = data[at - offset :]
            offset = at
        if data:
            self.at[stream] = offset + len(data)
            yield Output(stream, offset, data, self._decoders[stream].decode(data))

    def gap(self, stream: str, start: int, end: int) -> Iterator[Event]:
        if stream not in self.at:
            raise ProtocolError(f"a gap in {stream!r}")
        self.certain = True
        start = max(start, self.at[stream])
        if end > start:
            self._decoders[stream].reset()
            self.at[stream] = end
            yield Gap(stream, start, end)

    def end(self, result: Result) -> Iterator[Event]:
        """The command's end. Bytes that it printed and that did not come are a gap, too."""
        sizes = {"stdout": result.stdout_bytes, "stderr": result.stderr_bytes}
        for name in STREAMS:
            yield from self.gap(name, self.at[name], sizes[name])
            rest = self._decoders[name].decode(b"", True)
            if rest:
                yield Output(name, self.at[name], b"", rest)
        self.ended = self.certain = True
        yield Ended(result)


def _number(data: Mapping[str, Any], key: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ProtocolError(f"{key} is {value!r}")
    return value


def _bytes(data: Mapping[str, Any]) -> bytes:
    if "text" in data:
        return str(data["text"]).encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(str(data.get("base64", "")), validate=True)
    except binascii.Error as error:
        raise ProtocolError("output that is no base64") from error


class Lines:
    """Whole lines of text pieces, of each stream; `Lost` where a part is missing."""

    def __init__(self) -> None:
        self._rest: Dict[str, List[str]] = {}

    def take(self, event: Event) -> Iterator[str]:
        if isinstance(event, Output):
            parts = event.text.split("\n")
            rest = self._rest.setdefault(event.stream, [])
            for part in parts[:-1]:
                rest.append(part)
                yield "".join(rest)
                rest.clear()
            if parts[-1]:
                rest.append(parts[-1])
        elif isinstance(event, Gap):
            raise Lost(event.stream, event.start, event.end)
        elif isinstance(event, Ended):
            for rest in self._rest.values():
                if rest:
                    yield "".join(rest)
            self._rest.clear()
