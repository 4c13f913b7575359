# Made of aio/files.py by clients/python/generate.py; change that, not this.
"""The files of a sandbox: as raw bytes, by path, in parts, and of any size."""

from __future__ import annotations

import os
import secrets
import stat as modes
from typing import Iterator, List, Optional, Union
from urllib.parse import quote, unquote

from ..core.requests import Body, RemotePath, Request, sandbox_path, send_json, with_query
from ..core.retry import Cut
from ..errors import ChangedMeanwhile, FileChanged, NotFound, ProtocolError, RangeNotSatisfiable
from ..model import Patched, Stat
from .connection import Connection
from .io import Answer, now, sleep

#: Bytes that `download_content` holds in memory at most, unless told otherwise.
CONTENT_BYTES_MAX = 1 << 30
#: How often a download into a file starts again, because the file was replaced meanwhile.
RESTARTS_MAX = 5

LocalPath = Union[str, "os.PathLike[str]"]


class Reader:
    """The bytes of one file, of one version of it, from `start` up to `end`. Goes on after a cut where it stopped."""

    def __init__(
        self, connection: Connection, path: str, start: int = 0, end: Optional[int] = None, etag: Optional[str] = None
    ) -> None:
        self._connection, self._path, self._end = connection, path, end
        #: Of the next byte.
        self.at = start
        #: The file's version, once the answer has begun.
        self.etag = etag
        self._attempts = connection.attempts()
        self._answer: Optional[Answer] = None
        self._left: Optional[int] = None

    def piece(self) -> bytes:
        """The next bytes; none at the end. `FileChanged` where the file is no longer the one that was begun."""
        while True:
            if self._left == 0 or (self._end is not None and self.at >= self._end):
                self.close()
                return b""
            if self._answer is None:
                self._open()
                continue
            try:
                piece = self._answer.piece()
                if not piece and self._left:
                    raise Cut(f"the file ended {self._left} bytes early")
            except Cut as cut:
                self.close()
                sleep(self._attempts.delay(cut, now()))
                continue
            if not piece:
                self._left = 0
                continue
            self._attempts.progressed()
            self.at += len(piece)
            if self._left is not None:
                self._left -= len(piece)
            return piece

    def _open(self) -> None:
        request = Request("GET", self._path)
        partial = bool(self.at or self._end is not None)
        if partial:
            request.headers["range"] = f"bytes={self.at}-" + (str(self._end - 1) if self._end is not None else "")
        if self.etag:
            request.headers["if-match"] = self.etag
        try:
            answer = self._connection.open(request, self._attempts)
        except ChangedMeanwhile as error:
            raise FileChanged("the file was replaced while it was read") from error
        except RangeNotSatisfiable:
            # It ends where the next byte would be, or before.
            self._left = 0
            return
        if answer is None:
            return
        if partial and answer.status != 206 and self.at:
            answer.close()
            raise ProtocolError(f"status {answer.status} where a part of the file was asked for")
        self.etag = answer.headers.get("etag", self.etag)
        length = answer.headers.get("content-length")
        self._left = int(length) if length is not None and length.isdigit() else None
        self._answer = answer

    def close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()


class Files:
    """File operations of a sandbox. Paths are absolute, or relative to its working folder."""

    _connection: Connection
    id: str

    def _at(self, rest: str, path: RemotePath, **query: object) -> str:
        return with_query(sandbox_path(self.id, rest), list(query.items()), {"path": path})

    def _put(
        self,
        body: Union[bytes, Body],
        path: RemotePath,
        mode: Union[int, str, None],
        owner: Optional[str],
        parents: bool,
        create_new: bool,
    ) -> Stat:
        octal = f"{mode:04o}" if isinstance(mode, int) else mode
        place = self._at("/files", path, mode=octal, owner=owner, parents=parents, create_new=create_new or None)
        request = Request("PUT", place, {"content-type": "application/octet-stream"}, body)
        return Stat.read((self._connection.change(self.id, request)).object())

    def upload_content(
        self,
        content: Union[str, bytes],
        remote_path: RemotePath,
        *,
        mode: Union[int, str, None] = None,
        owner: Optional[str] = None,
        parents: bool = True,
        create_new: bool = False,
    ) -> Stat:
        """Writes a file atomically. `mode` as in `0o644`; by default the replaced file's, else 0644."""
        data = content.encode() if isinstance(content, str) else bytes(content)
        return self._put(data, remote_path, mode, owner, parents, create_new)

    def upload_file(
        self,
        local_path: LocalPath,
        remote_path: RemotePath,
        *,
        mode: Union[int, str, None] = None,
        owner: Optional[str] = None,
        parents: bool = True,
        create_new: bool = False,
    ) -> Stat:
        """Copies a file of any size into the sandbox, atomically; `mode` defaults to the permissions of the local file."""
        found = os.stat(local_path)
        body = Body(found.st_size, lambda: open(local_path, "rb"))
        mode = modes.S_IMODE(found.st_mode) & 0o777 if mode is None else mode
        return self._put(body, remote_path, mode, owner, parents, create_new)

    def stream_file(
        self, remote_path: RemotePath, start: int = 0, end: Optional[int] = None
    ) -> Iterator[bytes]:
        """Streams a file from `start` up to `end` (default: its end) and reconnects if the connection breaks. `FileChanged` if the file is replaced meanwhile."""
        reader = Reader(self._connection, self._at("/files", remote_path), start, end)
        try:
            while True:
                piece = reader.piece()
                if not piece:
                    return
                yield piece
        finally:
            reader.close()

    def download_content(
        self,
        remote_path: RemotePath,
        start: int = 0,
        end: Optional[int] = None,
        bytes_max: int = CONTENT_BYTES_MAX,
    ) -> bytes:
        """A file's bytes, from `start` up to `end`. `ValueError` if they are more than `bytes_max`."""
        content = bytearray()
        for piece in self.stream_file(remote_path, start, end):
            content += piece
            if len(content) > bytes_max:
                raise ValueError(f"{remote_path!r} has over {bytes_max} bytes; use stream_file or download_file")
        return bytes(content)

    def download_file(self, remote_path: RemotePath, local_path: LocalPath, *, resume: bool = False) -> int:
        """Copies a file out of the sandbox; `local_path` is replaced once the copy is complete. Returns the number of bytes.

        A file that is replaced meanwhile is started again. `resume`: what had come when a download failed is kept beside
        `local_path`, and the next one goes on from there where the file is still the same.
        """
        for _ in range(RESTARTS_MAX):
            try:
                return self._download(remote_path, os.fspath(local_path), resume)
            except FileChanged:
                continue
        raise FileChanged(f"{remote_path!r} was replaced {RESTARTS_MAX} times while it was read")

    def _download(self, remote_path: RemotePath, target: str, resume: bool) -> int:
        folder, name = os.path.split(target)
        part, etag = _part(folder or ".", name) if resume else (None, None)
        place = self._at("/files", remote_path)
        start = os.path.getsize(part) if part else 0
        reader = Reader(self._connection, place, start, None, etag)
        path = part or os.path.join(folder or ".", f".{name}.{secrets.token_hex(8)}.part")
        kept = False
        # A new one has the permissions of any new file, and is never what somebody else put there under its name.
        out = open(path, "ab" if part else "xb")
        try:
            with out:
                try:
                    while True:
                        piece = reader.piece()
                        if not piece:
                            break
                        out.write(piece)
                except Exception as error:
                    kept = resume and reader.etag is not None and not isinstance(error, FileChanged)
                    raise
            os.replace(path, target)
            return reader.at
        except BaseException:
            if kept and reader.etag:
                os.replace(path, _part_path(folder or ".", name, reader.etag))
            elif os.path.exists(path):
                os.unlink(path)
            raise
        finally:
            reader.close()

    def list_files(self, remote_path: RemotePath = ".", depth: int = 1) -> List[Stat]:
        """The entries of a folder, `depth` levels deep; their `path` is relative to the folder. `ValueError` if there are too many."""
        answer = (self._connection.call(Request("GET", self._at("/folders", remote_path, depth=depth)))).object()
        if answer.get("truncated"):
            raise ValueError(f"{remote_path!r} has more entries than one answer holds; list its folders one by one")
        return [Stat.read(each) for each in answer.get("entries", [])]

    def stat(self, remote_path: RemotePath, follow: bool = True) -> Stat:
        """Attributes of the file at a path; follows links unless `follow` is false."""
        return Stat.read((self._connection.call(Request("GET", self._at("/stat", remote_path, follow=follow)))).object())

    def exists(self, remote_path: RemotePath) -> bool:
        """Whether the path exists, including broken links."""
        try:
            self.stat(remote_path, follow=False)
            return True
        except NotFound as error:
            if error.code == "sandbox-lost":
                raise
            return False

    def remove(self, remote_path: RemotePath, recursive: bool = False, missing_ok: bool = False) -> bool:
        """Removes a file or a folder; False if it did not exist (with `missing_ok`)."""
        place = self._at("/files", remote_path, recursive=recursive or None, missing_ok=missing_ok or None)
        return bool((self._connection.change(self.id, Request("DELETE", place))).object().get("removed"))

    def make_folder(
        self,
        remote_path: RemotePath,
        *,
        mode: Union[int, str, None] = None,
        owner: Optional[str] = None,
        parents: bool = True,
    ) -> Stat:
        """Creates a folder; with `parents` also the folders above it, and it may exist already."""
        octal = f"{mode:04o}" if isinstance(mode, int) else mode
        place = self._at("/folders", remote_path, mode=octal, owner=owner, parents=parents)
        return Stat.read((self._connection.change(self.id, Request("POST", place))).object())

    def move(self, source: str, target: str, replace: bool = False) -> None:
        """Renames a file or folder."""
        body = {"from": source, "to": target, "replace": replace or None}
        self._connection.change(self.id, send_json("POST", sandbox_path(self.id, "/move"), body))

    def apply_patch(
        self,
        patch: str,
        timeout: Optional[float] = None,
        *,
        root: Optional[str] = None,
        strip: Optional[int] = None,
        fuzz: Optional[int] = None,
        reverse: bool = False,
        dry_run: bool = False,
    ) -> Patched:
        """Applies a unified or git diff: all of it, or nothing (`PatchRejected`). `timeout` is accepted and ignored."""
        body = {
            "patch": patch,
            "root": root,
            "strip": strip,
            "fuzz": fuzz,
            "reverse": reverse or None,
            "dry_run": dry_run or None,
        }
        response = self._connection.change(self.id, send_json("POST", sandbox_path(self.id, "/patch"), body))
        return Patched.read(response.object())


def _part_path(folder: str, name: str, etag: str) -> str:
    return os.path.join(folder, f".{name}.{quote(etag, safe='')}.part")


def _part(folder: str, name: str) -> "tuple[Optional[str], Optional[str]]":
    """What an earlier download left, and of which version of the file."""
    prefix = f".{name}."
    for entry in os.listdir(folder):
        middle = entry[len(prefix) : -len(".part")]
        if entry.startswith(prefix) and entry.endswith(".part") and middle.startswith("%22"):
            return os.path.join(folder, entry), unquote(middle)
    return None, None
