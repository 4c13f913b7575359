"""Bytes to plain values: both forms of `group/v1`, one group at a time, with the long arrays as NumPy arrays."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO, Dict, Iterator, List, Tuple, Union

import msgpack  # type: ignore[import-untyped]
import numpy as np

Raw = Dict[str, Any]

#: The long arrays of a segment, and how their elements stand in the msgpack form.
ARRAYS: Dict[str, "np.dtype[Any]"] = {
    "tokens": np.dtype("<u4"),
    "mask": np.dtype("u1"),
    "origin": np.dtype("u1"),
    "logprobs": np.dtype("<f4"),
    "advantages": np.dtype("<f4"),
    "token_rewards": np.dtype("<f4"),
}

#: A length field beyond this is taken for damage, not for a group.
GROUP_BYTES_MAX = 1 << 31


class FormatError(ValueError):
    """The file, or one group of it, is not of the form it should have."""

    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.place = place
        self.text = text


def read_raw(path: Union[str, "os.PathLike[str]"]) -> Iterator[Tuple[str, Raw]]:
    """Yields (place, group) for each group of a file, whichever form it has.

    Raises `FormatError` at the first group that cannot be read, `OSError` where the file cannot.
    """
    with open(path, "rb") as file:
        head = file.read(5)
        file.seek(0)
        # A line of JSON is ASCII at its beginning; behind its length a msgpack group opens with the mark of a map.
        if len(head) == 5 and head[4] >= 0x80:
            yield from _read_msgpack(file)
        else:
            yield from _read_lines(file)


def _read_msgpack(file: BinaryIO) -> Iterator[Tuple[str, Raw]]:
    at = 0
    while True:
        head = file.read(4)
        if not head:
            return
        place = f"byte {at}"
        if len(head) < 4:
            raise FormatError(place, f"the file ends within a length field, after {len(head)} bytes of 4")
        length = int.from_bytes(head, "little")
        if length > GROUP_BYTES_MAX:
            raise FormatError(place, f"the length field says {length} bytes")
        body = file.read(length)
        if len(body) < length:
            raise FormatError(place, f"the file ends within a group, after {len(body)} bytes of {length}")
        yield place, unpacked(place, body)
        at += 4 + length


def unpacked(place: str, body: bytes) -> Raw:
    """One group of the msgpack form, without the length in front."""
    try:
        group = msgpack.unpackb(body, strict_map_key=False)
    except Exception as error:  # the library raises a dozen unrelated types
        raise FormatError(place, f"is not msgpack: {error}") from error
    return _with_arrays(place, group)


def _read_lines(file: BinaryIO) -> Iterator[Tuple[str, Raw]]:
    for number, line in enumerate(file, start=1):
        place = f"line {number}"
        if not line.endswith(b"\n"):
            raise FormatError(place, "the file ends within a line")
        try:
            group = json.loads(line, parse_constant=_refuse_constant)
        except ValueError as error:
            raise FormatError(place, f"is not JSON: {error}") from error
        yield place, _with_arrays(place, group)


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _with_arrays(place: str, group: Any) -> Raw:
    if not isinstance(group, dict):
        raise FormatError(place, f"is a {type(group).__name__}, expected a map")
    for key in ("trajectories", "replaced", *(["not_chosen"] if "not_chosen" in group else [])):
        for index, trajectory in enumerate(_maps(place, group, key)):
            below = f"{place}, {key}[{index}]"
            for row, segment in enumerate(_maps(below, trajectory, "segments")):
                for name, dtype in ARRAYS.items():
                    if segment.get(name) is not None:
                        segment[name] = _array(f"{below}, segments[{row}].{name}", segment[name], dtype)
    return group


def _maps(place: str, holder: Raw, key: str) -> List[Raw]:
    value = holder.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise FormatError(place, f"`{key}` is missing, or no list of maps")
    return value


def _array(place: str, value: Any, dtype: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
    if isinstance(value, bytes):
        if len(value) % dtype.itemsize:
            raise FormatError(place, f"{len(value)} bytes are not a whole number of {dtype.itemsize}-byte elements")
        return np.frombuffer(value, dtype=dtype).astype(dtype.newbyteorder("="), copy=False)
    if not isinstance(value, list):
        raise FormatError(place, f"is neither bytes nor a list but {type(value).__name__}")
    if dtype.kind == "u":
        most = np.iinfo(dtype).max
        for index, item in enumerate(value):
            if type(item) is not int or not 0 <= item <= most:
                raise FormatError(place, f"element {index} is {item!r}, not a whole number from 0 to {most}")
    else:
        for index, item in enumerate(value):
            if type(item) not in (int, float):
                raise FormatError(place, f"element {index} is {item!r}, not a number")
    return np.asarray(value, dtype=dtype.newbyteorder("="))
