"""Every request of the interface as plain data. What may be repeated says so, and by what it cannot act twice."""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote, quote_from_bytes, urlencode

from ..errors import ProtocolError
from .calls import CallId

#: A path in a sandbox: text, bytes that need not be UTF-8, or a path object.
RemotePath = Union[str, bytes, "os.PathLike[str]"]
Labels = Mapping[str, str]

#: Bytes of one piece of a file that is sent or read.
PIECE_BYTES = 256 << 10


class Body:
    """What is sent, as often as it must be: bytes, or a file that is read again."""

    def __init__(self, size: int, open: Callable[[], BinaryIO]) -> None:
        self.size, self._open = size, open

    def pieces(self) -> Iterator[bytes]:
        """From the begin. A file that became shorter is an error, one that grew is cut: its size was said already."""
        left = self.size
        with self._open() as source:
            while left:
                piece = source.read(min(PIECE_BYTES, left))
                if not piece:
                    raise OSError(f"the file became {left} bytes shorter while it was sent")
                left -= len(piece)
                yield piece


@dataclass
class Request:
    """One call."""

    method: str
    #: With its query, quoted.
    path: str
    headers: Dict[str, str] = field(default_factory=dict)
    body: Union[bytes, Body] = b""
    #: It cannot act twice: it only reads, or carries an id.
    repeatable: bool = True
    #: Seconds that the service itself may wait before it answers.
    wait: float = 0.0


@dataclass(frozen=True)
class Response:
    """An answer below 400."""

    status: int
    #: Names in lower case.
    headers: Mapping[str, str]
    body: bytes
    #: Which attempt brought it, from 1.
    attempts: int = 1

    def json(self) -> Any:
        """`ProtocolError` where it is none."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ProtocolError(f"status {self.status} with {self.body[:100]!r}, which is not valid JSON") from error

    def object(self) -> Dict[str, Any]:
        value = self.json()
        if not isinstance(value, dict):
            raise ProtocolError(f"{self.body[:100]!r} is not an object")
        return value


def segment(text: str) -> str:
    """One part of a path."""
    return quote(text, safe="")


def remote(path: RemotePath) -> str:
    """A path as a query's value."""
    return quote_from_bytes(path if isinstance(path, bytes) else os.fsencode(path), safe="/")


def with_query(path: str, values: Sequence[Tuple[str, Any]], paths: Mapping[str, RemotePath] = {}) -> str:
    """Values that are None are left out; booleans are `true` and `false`."""
    words = [f"{key}={remote(value)}" for key, value in paths.items()]
    said = [(key, str(value).lower() if isinstance(value, bool) else value) for key, value in values if value is not None]
    if said:
        words.append(urlencode(said))
    return path + ("?" + "&".join(words) if words else "")


def get(path: str, wait: float = 0.0, **query: Any) -> Request:
    return Request("GET", with_query(path, list(query.items())), wait=wait)


def send_json(method: str, path: str, body: Mapping[str, Any], **more: Any) -> Request:
    said = {key: value for key, value in body.items() if value is not None}
    data = json.dumps(said, separators=(",", ":")).encode()
    return Request(method, path, {"content-type": "application/json"}, data, **more)


def once(request: Request) -> Request:
    """With a key by which the service knows a repeat; of what makes sandboxes and checkpoints."""
    request.headers["idempotency-key"] = secrets.token_urlsafe(18)
    return request


def called(request: Request, call: CallId, floor: int) -> Request:
    """With the id of a changing call."""
    request.headers["espalier-call"] = f"{call}; floor={floor}" if floor else str(call)
    return request


def sandbox_path(sandbox: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{segment(sandbox)}{rest}"


def command_path(sandbox: str, command: str, rest: str = "") -> str:
    return sandbox_path(sandbox, f"/commands/{segment(command)}{rest}")


def list_sandboxes(labels: Labels, state: Optional[str], name: Optional[str], limit: int, after: Optional[str]) -> Request:
    query: List[Tuple[str, Any]] = [("label", f"{key}={value}" if value else key) for key, value in labels.items()]
    query += [("state", state), ("name", name), ("limit", limit), ("after", after)]
    return Request("GET", with_query("/v1/sandboxes", query))


_SIZE = re.compile(r"\s*([0-9.]+)\s*([KMGT])i?B?\s*", re.IGNORECASE)


def size(value: Union[int, str, None]) -> Union[int, str, None]:
    """Bytes, or text such as `2GiB`; Kubernetes' `2Gi` is understood as well."""
    if isinstance(value, str):
        found = _SIZE.fullmatch(value)
        if found and value.strip().lower().endswith("i"):
            return f"{found.group(1)}{found.group(2).upper()}iB"
        return int(value) if value.isdigit() else value
    return value


def cores(value: Union[int, float, str, None]) -> Union[int, float, None]:
    """Cores; Kubernetes' `"4"` and `"2000m"` are understood as well."""
    if isinstance(value, str):
        try:
            return int(value[:-1]) / 1000 if value.endswith("m") else float(value)
        except ValueError:
            raise ValueError(f"cpu {value!r}: a number of cores, such as 2 or 0.5") from None
    return value

