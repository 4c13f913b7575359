"""The messages of a command's WebSocket, and what of its input must be sent again after a cut."""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, Iterator, List, Optional, Union

from ..errors import EspalierError, ProtocolError, problem_error
from ..model import Event, Result, Started
from .output import Assembly

#: Bytes of one message.
MESSAGE_BYTES = 256 << 10
#: Bytes of input that are kept for being sent again.
INPUT_KEPT_MAX = 1 << 20
_STREAMS = {1: "stdout", 2: "stderr"}


class Dialogue:
    """Of one command, over as many connections as it takes."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.assembly = Assembly()
        self.pid: Optional[int] = None
        #: Bytes of input given so far, and the last of them.
        self.written = 0
        self._kept = bytearray()
        self.input_ended = False

    def attach(self) -> str:
        """The first message of a later connection."""
        at = self.assembly.at
        body = {"id": self.id, "stdout_from": at["stdout"], "stderr_from": at["stderr"]}
        return json.dumps({"attach": body})

    @staticmethod
    def start(body: Dict[str, Any]) -> str:
        """The first message of the first connection."""
        return json.dumps({"start": body})

    def input(self, data: bytes) -> bytes:
        """The message of new input, of at most `MESSAGE_BYTES`."""
        message = struct.pack(">Q", self.written) + data
        self.written += len(data)
        self._kept += data
        del self._kept[: max(len(self._kept) - INPUT_KEPT_MAX, 0)]
        return message

    def again(self, taken: int) -> List[bytes]:
        """The messages of what was sent and not taken."""
        missing = max(self.written - taken, 0)
        if missing > len(self._kept):
            raise EspalierError(f"{missing} bytes of input were lost in a cut; only the last {len(self._kept)} are kept")
        rest = bytes(self._kept[len(self._kept) - missing :])
        starts = range(0, missing, MESSAGE_BYTES)
        return [struct.pack(">Q", taken + at) + rest[at : at + MESSAGE_BYTES] for at in starts]

    def end(self) -> str:
        self.input_ended = True
        return json.dumps({"stdin_end": self.written})

    @staticmethod
    def resize(rows: int, columns: int) -> str:
        return json.dumps({"resize": {"rows": rows, "columns": columns}})

    @staticmethod
    def signal(signal: Union[int, str], tree: bool) -> str:
        return json.dumps({"signal": {"signal": signal, "tree": tree}})

    def take(self, message: Union[str, bytes]) -> Iterator[Event]:
        """What is new in a message of the service."""
        if isinstance(message, bytes):
            if len(message) < 9 or message[0] not in _STREAMS:
                raise ProtocolError(f"a message of {len(message)} bytes that begins with {message[:1]!r}")
            (offset,) = struct.unpack(">Q", message[1:9])
            yield from self.assembly.output(_STREAMS[message[0]], offset, message[9:])
            return
        try:
            data = json.loads(message)
        except ValueError as error:
            raise ProtocolError(f"a message that is not valid JSON: {message[:100]!r}") from error
        kind = data.get("event")
        if kind == "started":
            self.pid = data.get("pid", self.pid)
            if not self.assembly.started:
                self.assembly.started = True
                yield Started(str(data.get("id", self.id)))
        elif kind == "gap":
            yield from self.assembly.gap(str(data.get("stream")), int(data.get("from", 0)), int(data.get("to", 0)))
        elif kind == "ended":
            result = data.get("command") or data.get("result") or {k: v for k, v in data.items() if k != "event"}
            yield from self.assembly.end(Result.read(result))
        elif kind == "error":
            raise problem_error(data.get("problem") or data.get("error") or data)
