"""Sandboxes: machines to run commands on.

Times are seconds. A command that fails is an outcome, not a failure. Failures that a plugin may want to tell apart are ``Other`` with a
code: `not-found`, `not-permitted`, `wrong-kind`, `disk-full`, `patch`, `shell-ended`, `bound`, `expired`, `unsupported`, `io`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from . import convert, wit
from .schema import to_json

#: Bytes of one call that reads.
SLICE = 1 << 20

#: A path: relative ones start at the sandbox's working folder. Bytes where it is not UTF-8.
Path = str | bytes


@dataclass(frozen=True)
class Output:
    """What a command printed on one of its outputs."""

    #: All of it, or its start.
    head: str
    #: Bytes between `head` and `tail`.
    left_out: int = 0
    #: Its end; empty where nothing is left out.
    tail: str = ""
    #: Bytes printed in all.
    total: int = 0
    #: Blob with every byte kept, where the command asked for it.
    whole: str | None = None

    @property
    def text(self) -> str:
        """What is shown of it, with how much is left out between."""
        if not self.left_out:
            return self.head
        return f"{self.head}\n[{self.left_out} bytes left out]\n{self.tail}"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Outcome:
    """What came of a command."""

    #: `exit-code`, `signal`, `timed-out`, `out-of-memory` or a newer word.
    ending: str
    #: Where it ended by itself.
    exit_code: int | None
    #: Where it ended by a signal.
    signal: int | None
    stdout: Output
    stderr: Output
    duration_ms: int
    #: Processes that it left running.
    left_running: int
    extra: Any = None

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with 0."""
        return self.exit_code == 0

    @property
    def ended(self) -> str:
        """How it ended, in words."""
        if self.exit_code is not None:
            return f"exit code {self.exit_code}"
        return f"signal {self.signal}" if self.signal is not None else self.ending.replace("-", " ")


@dataclass(frozen=True)
class Stat:
    """What is known of a file."""

    #: `file`, `folder`, `link`, `fifo`, `socket`, `character-device`, `block-device` or a newer word.
    kind: str
    mode: int
    user_id: int
    group_id: int
    size: int
    modified_ms: int
    #: Where a link points.
    target: Path | None = None


@dataclass(frozen=True)
class Entry:
    """One entry of a folder."""

    #: From the folder that was listed.
    path: Path
    stat: Stat
    #: Why it, or what is in it, could not be looked at.
    error: str | None = None


@dataclass(frozen=True)
class PatchedFile:
    """A file that a patch is about."""

    path: Path
    old_path: Path | None
    #: `modified`, `created`, `deleted`, `renamed`, `copied` or a newer word.
    action: str
    hunks: int
    shifted: int
    fuzzy: int


@dataclass(frozen=True)
class Changes:
    """Work taken out of a sandbox."""

    #: The work, for `apply_changes`.
    blob: str
    added: int
    changed: int
    removed: int
    content_bytes: int


@dataclass(frozen=True)
class Piece:
    """A piece of an output."""

    offset: int
    data: bytes
    #: Bytes printed so far.
    total: int
    #: Whether the command has ended.
    ended: bool


class Process:
    """A command that was started."""

    def __init__(self, opened: Any) -> None:
        self._open = opened

    @property
    def pid(self) -> int:
        """Its process id, as the sandbox sees it."""
        return int(wit.call(self._open.pid))

    def poll(self) -> Outcome | None:
        """What came of it; None while it runs."""
        return _maybe_outcome(wit.call(self._open.poll))

    def wait(self, timeout: float) -> Outcome | None:
        """Waits for its end; None when it still runs."""
        return _maybe_outcome(wit.call(self._open.wait, _ms(timeout, "timeout")))

    def read(self, channel: Literal["stdout", "stderr"] = "stdout", offset: int = 0, wait: float = 0) -> Piece:
        """Up to 1 MiB from `offset`; where there is nothing yet, waits for it."""
        side = wit.sandboxes.Channel[channel.upper()]
        piece = wit.call(self._open.read, side, offset, SLICE, _ms(wait, "wait"))
        return Piece(piece.offset, piece.bytes, piece.total, piece.ended)

    def write(self, content: bytes | str) -> int:
        """Bytes for its standard input, 1 MiB at most; returns how many it took."""
        return int(wit.call(self._open.write_stdin, _bytes(content, "content")))

    def close_stdin(self) -> None:
        """No more input."""
        wit.call(self._open.close_stdin)

    def resize(self, rows: int, columns: int) -> None:
        """Size of its terminal."""
        wit.call(self._open.resize, wit.sandboxes.TerminalSize(rows, columns))

    def signal(self, number: int, *, tree: bool = False) -> int:
        """Sends a signal to it, or to everything that it started; returns how many processes it reached."""
        return int(wit.call(self._open.signal, number, tree))


class Shell:
    """A stateful shell: folder, variables and functions stay from one text to the next."""

    def __init__(self, opened: Any) -> None:
        self._open = opened

    def run(
        self,
        text: str,
        *,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        output_max: int | None = None,
        keep_whole: bool = False,
        merge_stderr: bool = False,
    ) -> Outcome:
        """Runs a text and waits for its end. A timeout kills what the text started; the shell lives on."""
        options = wit.sandboxes.RunOptions(
            timeout_ms=None if timeout is None else _ms(timeout, "timeout"),
            stdin=None if stdin is None else _bytes(stdin, "stdin"),
            output_max=output_max,
            keep_whole=keep_whole,
            merge_stderr=merge_stderr,
            extra=None,
        )
        return _outcome(wit.call(self._open.run, convert.text_out(text, "text"), options))

    def close(self) -> None:
        """Ends the shell and all that was started in it."""
        wit.call(self._open.close)


class Sandbox:
    """A machine of the rollout."""

    def __init__(self, opened: Any) -> None:
        self._open = opened

    @classmethod
    def open(cls, name: str = "main") -> "Sandbox":
        """The sandbox of this name, as the task names it."""
        return cls(wit.call(wit.sandboxes.open, convert.text_out(name, "name")))

    @classmethod
    def fresh(cls, name: str = "main") -> "Sandbox":
        """In rewards and judges: a new one of this name, that no agent has touched."""
        return cls(wit.call(wit.scoring.open_fresh, convert.text_out(name, "name")))

    @classmethod
    def create(cls, spec: Mapping[str, Any]) -> "Sandbox":
        """In task generators: a new one, with the keys that a task has of a sandbox (`image`, `files`, `setup` ...)."""
        return cls(wit.call(wit.creation.create, to_json(spec, "spec")))

    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        user: str | None = None,
        output_max: int | None = None,
        keep_whole: bool = False,
        merge_stderr: bool = False,
        terminal: tuple[int, int] | None = None,
    ) -> Outcome:
        """Runs shell text, or a program with its arguments, and waits for its end. `output_max` is in bytes of each output (default
        64 KiB, up to 1 MiB); `terminal` is rows and columns."""
        more = (timeout, cwd, env, stdin, user, output_max, keep_whole, merge_stderr, terminal)
        return _outcome(wit.call(self._open.exec, _command(command, *more)))

    def start(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        user: str | None = None,
        output_max: int | None = None,
        keep_whole: bool = False,
        merge_stderr: bool = False,
        terminal: tuple[int, int] | None = None,
    ) -> Process:
        """Starts a command and returns at once; its standard input stays open."""
        more = (timeout, cwd, env, stdin, user, output_max, keep_whole, merge_stderr, terminal)
        return Process(wit.call(self._open.start, _command(command, *more)))

    def open_shell(
        self,
        program: str | None = None,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Shell:
        """Opens a stateful shell: `bash` or `sh`; None: bash where the sandbox has it."""
        options = wit.sandboxes.ShellOptions(program, _maybe_path(cwd), _env(env), user, None)
        return Shell(wit.call(self._open.open_shell, options))

    def read(self, path: Path, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file from `offset`: `length` of them, or all. Errors: ``Other("not-found", ...)``."""
        pieces: list[bytes] = []
        left = length
        while left is None or left > 0:
            piece = wit.call(self._open.read_file, _path(path), offset, SLICE if left is None else min(left, SLICE))
            pieces.append(piece)
            if len(piece) < SLICE:
                break
            offset += len(piece)
            left = None if left is None else left - len(piece)
        return b"".join(pieces)

    def read_text(self, path: Path) -> str:
        """A file as UTF-8, with replacement characters."""
        return self.read(path).decode("utf-8", "replace")

    def write(
        self,
        path: Path,
        content: bytes | str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        parents: bool = True,
        create_new: bool = False,
    ) -> None:
        """Writes a file as a whole, 16 MiB at most, with the folders above it."""
        options = wit.sandboxes.WriteOptions(mode, owner, parents, create_new, None)
        wit.call(self._open.write_file, _path(path), _bytes(content, "content"), options)

    def file_to_blob(self, path: Path) -> str:
        """A whole file as a blob, 64 MiB at most."""
        return str(wit.call(self._open.file_to_blob, _path(path)))

    def blob_to_file(self, blob: str, path: Path, *, mode: int | None = None, parents: bool = True) -> None:
        """Writes a file with the bytes of a blob."""
        options = wit.sandboxes.WriteOptions(mode, None, parents, False, None)
        wit.call(self._open.blob_to_file, blob, _path(path), options)

    def list_folder(self, path: Path = ".", *, depth: int = 1) -> list[Entry]:
        """What stands in a folder, `depth` folders down; at most 10,000 entries."""
        entries = wit.call(self._open.list_folder, _path(path), depth)
        return [Entry(entry.path.value, _stat(entry.stat), entry.error) for entry in entries]

    def stat(self, path: Path, *, follow: bool = True) -> Stat:
        """What stands at a path; with `follow`, what a link there points to."""
        return _stat(wit.call(self._open.stat, _path(path), follow))

    def make_folder(self, path: Path, *, mode: int | None = None, parents: bool = True) -> None:
        """Makes a folder."""
        wit.call(self._open.make_folder, _path(path), wit.sandboxes.WriteOptions(mode, None, parents, False, None))

    def remove(self, path: Path, *, recursive: bool = False, missing_ok: bool = False) -> int:
        """Removes a file, or a folder with all that is in it; returns how many entries went."""
        return int(wit.call(self._open.remove, _path(path), recursive, missing_ok))

    def move(self, old_path: Path, new_path: Path, *, replace: bool = False) -> None:
        """Moves a file or folder."""
        wit.call(self._open.move_to, _path(old_path), _path(new_path), replace)

    def apply_patch(
        self,
        patch: str,
        *,
        root: Path | None = None,
        strip: int | None = None,
        fuzz: int | None = None,
        reverse: bool = False,
        dry_run: bool = False,
    ) -> list[PatchedFile]:
        """Applies a unified or git diff: all of it or nothing. Errors: ``Other("patch", ...)`` says which hunk does not apply."""
        options = wit.sandboxes.PatchOptions(_maybe_path(root), strip, fuzz, reverse, dry_run, None)
        files = wit.call(self._open.apply_patch, convert.text_out(patch, "patch"), options)
        return [
            PatchedFile(
                file.path.value,
                None if file.old_path is None else file.old_path.value,
                convert.word_of(file.action),
                file.hunks,
                file.shifted,
                file.fuzzy,
            )
            for file in files
        ]

    def changes(self, root: Path | None = None) -> Changes:
        """What was added, changed and removed since the set-up, below this folder or wherever the sandbox keeps account."""
        made = wit.call(self._open.changes, _maybe_path(root))
        return Changes(made.blob, made.added, made.changed, made.removed, made.content_bytes)

    def apply_changes(self, changes: Changes | str) -> None:
        """Puts changes of another sandbox of this rollout into this one."""
        wit.call(self._open.apply_changes, changes.blob if isinstance(changes, Changes) else changes)

    def checkpoint(self) -> str:
        """Keeps the file system as it is now, under a name from which sandboxes can be made."""
        return str(wit.call(self._open.checkpoint))

    def port(self, number: int) -> str:
        """An address of the host, as `127.0.0.1:PORT`, behind which a TCP port of the sandbox is reached."""
        return str(wit.call(self._open.port, number))

    def close(self) -> None:
        """Drops the handle; a fresh or created sandbox ends with it."""
        self._open.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def wait_any(processes: Sequence[Process], timeout: float) -> int | None:
    """Waits until one of these processes has ended; says which, by its place in the list; None when all still run."""
    opened = [process._open for process in processes]
    return wit.call(wit.sandboxes.wait_any, opened, _ms(timeout, "timeout"))  # type: ignore[no-any-return]


def _ms(seconds: float, path: str) -> int:
    number = convert.number_out(seconds, path)
    if number < 0:
        raise convert.wrong(path, "a number of seconds from 0", seconds)
    return round(number * 1_000)


def _bytes(content: Any, path: str) -> bytes:
    if isinstance(content, str):
        return content.encode()
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise convert.wrong(path, "bytes or a str", content)
    return bytes(content)


def _path(path: Any) -> Any:
    if isinstance(path, bytes):
        return wit.sandboxes.Path_Bytes(path)
    return wit.sandboxes.Path_Text(convert.text_out(path, "path"))


def _maybe_path(path: Any) -> Any:
    return None if path is None else _path(path)


def _env(env: Mapping[str, str] | None) -> list[tuple[str, str]]:
    return [(name, convert.text_out(value, f"env[{name!r}]")) for name, value in (env or {}).items()]


def _command(
    command: str | Sequence[str],
    timeout: float | None,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stdin: bytes | str | None,
    user: str | None,
    output_max: int | None,
    keep_whole: bool,
    merge_stderr: bool,
    terminal: tuple[int, int] | None,
) -> Any:
    if isinstance(command, str):
        program = wit.sandboxes.Program_Shell(convert.text_out(command, "command"))
    else:
        program = wit.sandboxes.Program_Argv(convert.list_out(command, "command", convert.text_out, "str"))
    return wit.sandboxes.Command(
        program=program,
        cwd=_maybe_path(cwd),
        env=_env(env),
        stdin=None if stdin is None else _bytes(stdin, "stdin"),
        user=convert.optional_out(user, "user", convert.text_out),
        timeout_ms=None if timeout is None else max(1, _ms(timeout, "timeout")),
        output_max=output_max,
        keep_whole=keep_whole,
        merge_stderr=merge_stderr,
        terminal=None if terminal is None else wit.sandboxes.TerminalSize(*terminal),
        extra=None,
    )


def _output(output: Any) -> Output:
    return Output(output.head, output.left_out, output.tail, output.total, output.whole)


def _outcome(outcome: Any) -> Outcome:
    ending = convert.word_of(outcome.ending)
    number = outcome.ending.value if ending in ("exit-code", "signal") else None
    return Outcome(
        ending=ending,
        exit_code=number if ending == "exit-code" else None,
        signal=number if ending == "signal" else None,
        stdout=_output(outcome.stdout),
        stderr=_output(outcome.stderr),
        duration_ms=outcome.duration_ms,
        left_running=outcome.left_running,
        extra=convert.loaded(outcome.extra),
    )


def _maybe_outcome(outcome: Any) -> Outcome | None:
    return None if outcome is None else _outcome(outcome)


def _stat(stat: Any) -> Stat:
    target = None if stat.target is None else stat.target.value
    kind = convert.word_of(stat.kind)
    return Stat(kind, stat.mode, stat.user_id, stat.group_id, stat.size, stat.modified_ms, target)
