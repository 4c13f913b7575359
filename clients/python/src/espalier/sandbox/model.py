"""What the service tells, as typed values. Fields that this version does not know are kept in `raw`."""

from __future__ import annotations

import base64
import datetime
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type, TypeVar, Union

from .errors import CommandFailed, ProtocolError

Json = Dict[str, Any]
_T = TypeVar("_T", bound="Record")


class Record:
    """A value of the service: its fields as attributes, and under the same names in brackets."""

    def __getitem__(self, key: str) -> Any:
        """`record["size"]`, for who is used to dictionaries."""
        try:
            return getattr(self, key)
        except AttributeError:
            raise KeyError(key) from None

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dictionary."""
        return getattr(self, key, default)

    @classmethod
    def read(cls: Type[_T], raw: Any) -> _T:
        """From an answer. `ProtocolError` names a field that is missing."""
        if not isinstance(raw, dict):
            raise ProtocolError(f"{cls.__name__}: {str(raw)[:100]!r} is not an object")
        known = {each.name for each in fields(cls)}  # type: ignore[arg-type]
        values = {key: value for key, value in cls._prepare(raw).items() if key in known and value is not None}
        if "raw" in known:
            values["raw"] = raw
        try:
            return cls(**values)
        except TypeError as error:
            raise ProtocolError(f"{cls.__name__}: {error}") from error

    @classmethod
    def _prepare(cls, raw: Json) -> Json:
        return raw


@dataclass(frozen=True)
class Fault(Record):
    """Why a sandbox could not be made."""

    code: str
    detail: str
    hint: Optional[str] = None


@dataclass(frozen=True)
class SandboxInfo(Record):
    """The state of a sandbox, as last reported by the service."""

    id: str
    #: `creating`, `running`, `failed` or `ended`.
    state: str
    image: str = ""
    name: Optional[str] = None
    labels: Dict[str, str] = field(default_factory=dict)
    #: Unix milliseconds.
    created_ms: int = 0
    #: Unix milliseconds; then it is ended, whatever it does.
    expires_ms: int = 0
    #: Seconds without a call or heartbeat after which it is ended.
    idle_s: Optional[float] = None
    cpu: Optional[float] = None
    #: Bytes.
    memory: Optional[int] = None
    #: Bytes.
    disk: Optional[int] = None
    network: Any = None
    user: Optional[str] = None
    workdir: Optional[str] = None
    error: Optional[Fault] = None
    #: Why it ended.
    ended: Optional[str] = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def _prepare(cls, raw: Json) -> Json:
        return {**raw, "error": Fault.read(raw["error"]) if raw.get("error") else None}


@dataclass(frozen=True)
class Result(Record):
    """The state of a command, as last reported by the service (Orchard's `job`)."""

    #: The call's id: attach to the command with it.
    id: str
    sandbox_id: str = ""
    #: `running` or `ended`.
    state: str = "running"
    label: Optional[str] = None
    pid: Optional[int] = None
    #: `exit`, `signal`, `timed-out`, `out-of-memory`, `not-started`, or `unknown` if its sandbox was lost. None while it runs.
    outcome: Optional[str] = None
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    message: Optional[str] = None
    duration_ms: Optional[int] = None
    #: Head and tail, with a line in between about what is left out; invalid UTF-8 is replaced.
    stdout: str = ""
    stderr: str = ""
    #: Bytes printed.
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    #: Bytes left out between head and tail.
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    #: Whether its shell ended with it.
    shell_ended: bool = False
    #: Processes of its tree that were left running.
    left_running: int = 0
    user_ms: int = 0
    system_ms: int = 0
    memory_max_bytes: int = 0
    command: Any = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def stdout_raw(self) -> bytes:
        """Standard output as bytes, without what `stdout_omitted` counts."""
        return self._bytes("stdout")

    @property
    def stderr_raw(self) -> bytes:
        """Standard error as bytes."""
        return self._bytes("stderr")

    def _bytes(self, stream: str) -> bytes:
        encoded = self.raw.get(f"{stream}_base64")
        return base64.b64decode(encoded) if encoded else str(getattr(self, stream)).encode()

    @property
    def ending(self) -> str:
        """In words."""
        if self.state == "running":
            return "is running"
        named = {
            "exit": f"ended with exit code {self.exit_code}",
            "signal": f"was ended by signal {self.signal}",
            "timed-out": "ran into its time limit",
            "out-of-memory": "was killed, for it had no more memory",
            "not-started": f"did not start: {self.message}",
            "unknown": f"has an unknown end: {self.message}",
        }
        return named.get(self.outcome or "", f"ended: {self.outcome}")

    @property
    def timed_out(self) -> bool:
        return self.outcome == "timed-out"

    @property
    def lost(self) -> bool:
        """Whether its sandbox was lost, so that its outcome is unknown: an infrastructure failure, not one of the command."""
        return self.outcome == "unknown"

    @property
    def truncated(self) -> bool:
        """Something of the output is left out of `stdout` or `stderr`."""
        return self.stdout_omitted > 0 or self.stderr_omitted > 0

    def check(self) -> "Result":
        """Returns itself; `CommandFailed` unless the exit code is 0."""
        if not self.succeeded:
            raise CommandFailed(self)
        return self

    # Orchard's names.

    @property
    def job_id(self) -> str:
        return self.id

    @property
    def status(self) -> str:
        """`running`, `succeeded` or `failed`."""
        return "running" if self.state == "running" else "succeeded" if self.succeeded else "failed"

    @property
    def succeeded(self) -> bool:
        return self.outcome == "exit" and self.exit_code == 0

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    @property
    def is_complete(self) -> bool:
        return self.state != "running"

    @property
    def error(self) -> Optional[str]:
        """Why it did not end by itself; None if it ended with any exit code."""
        return None if self.state == "running" or self.outcome == "exit" else self.ending


@dataclass(frozen=True)
class Started:
    """The service knows the command."""

    id: str


@dataclass(frozen=True)
class Output:
    """Bytes that the command printed."""

    #: `stdout` or `stderr`.
    stream: str
    #: Offset of the first byte in the stream.
    offset: int
    data: bytes
    #: The bytes as text; a character split between two events comes with the second one.
    text: str


@dataclass(frozen=True)
class Gap:
    """Bytes `start` to `end` of a stream are no longer kept."""

    stream: str
    start: int
    end: int


@dataclass(frozen=True)
class Ended:
    """The command's end. `result` is without output here."""

    result: Result


Event = Union[Started, Output, Gap, Ended]


@dataclass(frozen=True)
class Stat(Record):
    """Attributes of a file."""

    path: str
    #: `file`, `folder`, `link`, `fifo`, `socket`, `device` or `other`.
    kind: str
    #: Octal, four digits.
    mode: str = "0000"
    user_id: int = 0
    group_id: int = 0
    #: Bytes.
    size: int = 0
    modified_ms: int = 0
    #: Where a link points.
    target: Optional[str] = None
    #: Why an entry of a folder could not be read.
    error: Optional[str] = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1] or "/"

    @property
    def type(self) -> str:
        """Orchard's word: `file` or `directory`."""
        return "directory" if self.kind == "folder" else "file"

    @property
    def modified(self) -> str:
        """ISO 8601, UTC."""
        return datetime.datetime.fromtimestamp(self.modified_ms / 1000, datetime.timezone.utc).isoformat()


@dataclass(frozen=True)
class PatchedFile(Record):
    """What a patch did to one file."""

    path: str
    action: str
    #: Where it was renamed or copied from.
    from_path: Optional[str] = None
    hunks: int = 0
    #: Hunks that were applied elsewhere than at their line.
    shifted: int = 0
    #: Hunks that were applied with less context.
    fuzzy: int = 0

    @classmethod
    def _prepare(cls, raw: Json) -> Json:
        return {**raw, "from_path": raw.get("from")}


@dataclass(frozen=True)
class Patched(Record):
    """A patch that was applied as a whole."""

    files: Tuple[PatchedFile, ...] = ()
    raw: Json = field(default_factory=dict, repr=False, compare=False)
    #: Always: one that does not fit raises `PatchRejected`.
    success: bool = True

    @classmethod
    def _prepare(cls, raw: Json) -> Json:
        return {"files": tuple(PatchedFile.read(each) for each in raw.get("files", ()))}

    @property
    def output(self) -> str:
        return "\n".join(f"{each.action} {each.path}" for each in self.files)


@dataclass(frozen=True)
class Checkpoint(Record):
    """A saved file system from which sandboxes can be created."""

    id: str
    sandbox_id: Optional[str] = None
    image: str = ""
    labels: Dict[str, str] = field(default_factory=dict)
    created_ms: int = 0
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Resources(Record):
    """Quotas and use of the key, and the capacity of the machine."""

    #: `sandboxes`, `cpu`, `memory`, `disk` (bytes) of this key, and `checkpoints`: bytes that the quota of `disk` counts, too.
    used: Mapping[str, Any] = field(default_factory=dict)
    #: The limits; None: no limit.
    quotas: Mapping[str, Any] = field(default_factory=dict)
    #: Cores of the machine.
    cpu_total: float = 0
    #: Bytes of the machine.
    memory_total: int = 0
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Key(Record):
    """The key in use."""

    id: str
    name: str = ""
    scopes: List[str] = field(default_factory=list)
    quotas: Mapping[str, Any] = field(default_factory=dict)
    used: Mapping[str, Any] = field(default_factory=dict)
    raw: Json = field(default_factory=dict, repr=False, compare=False)
