"""What can go wrong, by what the caller can do about it. Every error of the service is an `ApiError` with its problem document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Mapping, Optional

if TYPE_CHECKING:
    from .model import Result, SandboxInfo


class EspalierError(Exception):
    """Base class of this package's exceptions."""


class ConnectionFailed(EspalierError, ConnectionError):
    """The service could not be reached, or its answers were cut, for longer than `reconnect_within` seconds.

    Whether the call was carried out is not known. The same call with the same id may be made again: it never acts twice.
    """

    def __init__(self, message: str, attempts: int = 1) -> None:
        super().__init__(message)
        self.attempts = attempts
        #: Of the command or other changing call: `exec(command, id=error.id)`, `attach(error.id)`.
        self.id: Optional[str] = None

    def of(self, what: str, id: str) -> None:
        """Says which call it was."""
        self.id = id
        self.args = (f"{self.args[0]} ({what} {id})",)


class WaitTimeout(EspalierError, TimeoutError):
    """The bound of a wait was reached; what was waited for goes on. `result` or `sandbox` is its state as last heard."""

    def __init__(self, message: str, result: Optional["Result"] = None, sandbox: Optional["SandboxInfo"] = None) -> None:
        super().__init__(message)
        self.result = result
        self.sandbox = sandbox


class ProtocolError(EspalierError):
    """An answer that is not in the form of the interface: another service, or another version."""


class Lost(EspalierError):
    """Bytes that were asked for are no longer kept: `start` to `end` of `stream`."""

    def __init__(self, stream: str, start: int, end: int) -> None:
        super().__init__(f"bytes {start} to {end} of {stream} are no longer kept")
        self.stream, self.start, self.end = stream, start, end


class FileChanged(EspalierError):
    """A file was replaced while it was read; what was read so far belongs to the old one."""


class SandboxFailed(EspalierError):
    """A sandbox that could not be made, with the reason and a hint; its record can still be read."""

    def __init__(self, sandbox: "SandboxInfo") -> None:
        fault = sandbox.error
        code, detail = (fault.code, fault.detail) if fault else ("failed", sandbox.ended or f"it is {sandbox.state}")
        hint = f"\nhint: {fault.hint}" if fault and fault.hint else ""
        super().__init__(f"sandbox {sandbox.id} ({sandbox.image}): {detail} ({code}){hint}")
        self.sandbox = sandbox
        self.code = code
        self.hint = fault.hint if fault else None


class CommandFailed(EspalierError):
    """A command that did not end with exit code 0, where the caller asked for that (`check`)."""

    def __init__(self, result: "Result") -> None:
        tail = result.stderr.strip()[-500:] or result.stdout.strip()[-500:]
        super().__init__(f"command {result.id}: {result.ending}" + (f"\n{tail}" if tail else ""))
        self.result = result


class ApiError(EspalierError):
    """An answer with a status of 400 or more: the fields of its problem document (RFC 9457), and how often it was asked."""

    def __init__(self, status: int, problem: Mapping[str, Any], request_id: Optional[str] = None) -> None:
        def text(key: str) -> Optional[str]:
            return str(problem[key]) if problem.get(key) is not None else None

        self.status = status
        self.code: str = text("code") or f"status-{status}"
        self.title: str = text("title") or self.code
        self.detail: str = text("detail") or self.title
        #: What to do about it, where the service knows.
        self.hint: Optional[str] = text("hint")
        #: The name of the call in the service's log.
        self.request_id: Optional[str] = text("request_id") or request_id
        #: The same call may succeed later.
        self.retryable: bool = bool(problem.get("retryable", status in (429, 502, 503, 504)))
        #: Seconds that the service asked to wait.
        self.retry_after: Optional[float] = None
        #: How often the call was made before this was given up.
        self.attempts: int = 1
        hint = f"\nhint: {self.hint}" if self.hint else ""
        where = f", request {self.request_id}" if self.request_id else ""
        super().__init__(f"{self.detail} ({self.code}, status {status}{where}){hint}")


class Unauthenticated(ApiError):
    """No key, or one that is not known or was revoked."""


class Forbidden(ApiError):
    """The key has no scope for this."""


class Denied(ApiError):
    """The sandbox's own file system says no: permission, read-only."""


class NotFound(ApiError):
    """No such sandbox, command, shell, file or checkpoint; or it is another key's."""


class Conflict(ApiError):
    """It is there already, or is in a state or of a kind that does not allow this."""


class IdReused(Conflict):
    """The id was used for a call with other content. Nothing was done."""


class ShellEnded(Conflict):
    """The shell that the command was for has ended."""


class PatchRejected(Conflict):
    """A patch that does not fit; nothing of it was applied. The detail names file and hunk."""


class Gone(ApiError):
    """It was there, and is no more."""


class Expired(Gone):
    """The service has forgotten what became of this id. It was **not** carried out again; whether it ran before is not known."""


class SandboxLost(Gone):
    """The sandbox is gone with its infrastructure; nothing in it can be had again. A failure of the machine, not of the work."""


class ChangedMeanwhile(ApiError):
    """A condition (`If-Match`) does not hold: the file is another one now."""


class TooLarge(ApiError):
    """A body over the service's bound."""


class RangeNotSatisfiable(ApiError):
    """The range begins after the end of the file."""


class Invalid(ApiError):
    """The request has no meaning; the detail names the field."""


class QuotaExceeded(ApiError):
    """The key's quota of sandboxes, cores, memory or disk is used up."""


class RateLimited(ApiError):
    """Too many requests; retried by itself until `reconnect_within` is over."""


class DiskFull(ApiError):
    """The sandbox's disk is full."""


class Unavailable(ApiError):
    """The service drains, or what it needs is away; retried by itself until `reconnect_within` is over."""


class ServiceTimeout(ApiError):
    """The service did not get its own answer in time."""


class NoListener(ApiError):
    """Nothing listens on this port inside of the sandbox."""


class Internal(ApiError):
    """A fault of the service; its log names it by `request_id`."""


_BY_CODE = {
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "denied": Denied,
    "not-found": NotFound,
    "conflict": Conflict,
    "id-reused": IdReused,
    "patch": PatchRejected,
    "shell-ended": ShellEnded,
    "gone": Expired,
    "expired": Expired,
    "sandbox-lost": SandboxLost,
    "payload-too-large": TooLarge,
    "range-not-satisfiable": RangeNotSatisfiable,
    "invalid": Invalid,
    "quota-exceeded": QuotaExceeded,
    "rate-limited": RateLimited,
    "disk-full": DiskFull,
    "unavailable": Unavailable,
    "timeout": ServiceTimeout,
    "no-listener": NoListener,
    "internal": Internal,
}

_BY_STATUS = {
    400: Invalid,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    412: ChangedMeanwhile,
    413: TooLarge,
    416: RangeNotSatisfiable,
    422: Invalid,
    429: RateLimited,
    500: Internal,
    503: Unavailable,
    504: ServiceTimeout,
    507: DiskFull,
}


def api_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error of an answer, by its code and else by its status. Bodies that are no problem document are quoted."""
    problem: Mapping[str, Any] = {}
    try:
        parsed = json.loads(body)
        if isinstance(parsed, dict):
            problem = parsed
    except ValueError:
        problem = {"detail": body[:300].decode("utf-8", "replace").strip() or f"status {status} without a body"}
    error = problem_error(problem, status, headers.get("x-request-id"))
    error.retry_after = _seconds(headers.get("retry-after"))
    return error


def problem_error(problem: Mapping[str, Any], status: Optional[int] = None, request_id: Optional[str] = None) -> ApiError:
    """The error of a problem document, also of one that came in the middle of a stream."""
    number = problem.get("status", 500) if status is None else status
    number = number if isinstance(number, int) else 500
    # A condition that does not hold has a status of its own, whatever it is called.
    by_code = None if number == 412 else _BY_CODE.get(str(problem.get("code")))
    kind = by_code or _BY_STATUS.get(number) or ApiError
    return kind(number, problem, request_id)


def _seconds(text: Optional[str]) -> Optional[float]:
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        return None
