"""Large bytes, kept by the engine under a reference."""

from dataclasses import dataclass
from typing import Any

from . import convert, wit

#: Bytes of one call.
SLICE = 1 << 20


@dataclass(frozen=True)
class Info:
    """What is known of a blob."""

    length: int
    media_type: str
    extra: Any = None


def stat(blob: str) -> Info:
    """Length and media type. Errors: ``Invalid`` for an unknown reference."""
    info = wit.call(wit.blobs.stat, convert.text_out(blob, "blob"))
    return Info(info.length, info.media_type, convert.loaded(info.extra))


def read(blob: str, offset: int = 0, length: int | None = None) -> bytes:
    """Bytes from `offset`: `length` of them, or all."""
    pieces: list[bytes] = []
    left = length
    while left is None or left > 0:
        piece = wit.call(wit.blobs.read, blob, offset, SLICE if left is None else min(left, SLICE))
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        left = None if left is None else left - len(piece)
    return b"".join(pieces)


def read_text(blob: str) -> str:
    """All of it as UTF-8, with replacement characters."""
    return read(blob).decode("utf-8", "replace")


def put(content: bytes | str, media_type: str = "") -> str:
    """Keeps bytes or a text, 64 MiB at most; returns the reference. Errors: ``Budget``, ``Invalid`` when too large."""
    if isinstance(content, str):
        return str(wit.call(wit.blobs.put, content.encode(), media_type or "text/plain; charset=utf-8"))
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise convert.wrong("content", "bytes or a str", content)
    return str(wit.call(wit.blobs.put, bytes(content), media_type or "application/octet-stream"))
