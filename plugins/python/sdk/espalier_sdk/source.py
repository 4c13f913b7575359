"""The author's files: what they are called, which lines they have, and errors told by them.

A component has no files once it runs, so lines are kept while it is built.
"""

import inspect
import itertools
import os
import sys
import types
from collections.abc import Callable
from typing import Any

#: Frames of one traceback.
FRAMES_MAX = 8
#: Equal frames, one behind the other, that are shown.
EQUAL_MAX = 2
#: Lines of a function's decorators that are looked through.
DECORATORS_MAX = 50
#: Characters of one message; the engine keeps 2,000 of a line.
MESSAGE_MAX = 800

_OTHERS = ("sdk", ".venv", "venv", "site-packages", "build")

_root = ""
_lines: dict[str, list[str]] = {}


def keep(root: str, error: BaseException | None = None) -> None:
    """Keeps the lines of the author's modules that are imported by now, and of those that `error` went through. `root` is the
    project's folder."""
    global _root
    _root = root.rstrip("/") + "/"
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    if error is not None:
        files.update(file for file, _line, _name in frames_of(error))
    for file in files:
        if is_own(file) and os.path.isfile(file):
            with open(file, encoding="utf-8", errors="replace") as text:
                _lines[file] = text.read().splitlines()


def is_own(file: str) -> bool:
    """Whether a file is the author's: in the project, and not a package in it."""
    if not _root or not file.startswith(_root):
        return False
    return not any(part in _OTHERS for part in file[len(_root) :].split("/")[:-1])


def named(file: str) -> str:
    """A file as its author calls it."""
    return file[len(_root) :] if is_own(file) else file


def error_text(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """An error as Python prints it, with the author's frames alone. An error without any is told of `function`."""
    lines = ["Traceback (most recent call last):"]
    frames = frames_of(error)
    if not frames and function is not None:
        # Below the author's own decorators, too.
        code = getattr(inspect.unwrap(function), "__code__", None)
        frames = [] if code is None else [definition_of(code)]
    groups = [(frame, len(list(equal))) for frame, equal in itertools.groupby(frames)]
    for (file, line, name), count in groups[-FRAMES_MAX:]:
        shown = [f'  File "{named(file)}", line {line}, in {name}']
        text = line_of(file, line)
        if text:
            shown.append(f"    {text}")
        lines.extend(shown * min(count, EQUAL_MAX))
        if count > EQUAL_MAX:
            lines.append(f"  [previous line repeated {count - EQUAL_MAX} more times]")
    lines.append(message_of(error))
    if isinstance(error, ModuleNotFoundError) and sys.platform == "wasi":
        lines.append(f"(a plugin has no files when it runs: import `{error.name}` at the top of the file)")
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        lines.append(f"caused by {message_of(cause)}{place_of(cause)}")
    return "\n".join(lines)


def message_of(error: BaseException) -> str:
    """The last line of a traceback."""
    try:
        text = plain(str(error))
    except BaseException as inner:  # noqa: BLE001, the author's own may raise anything
        text = f"(its `__str__` raises {type(inner).__name__})"
    text = text if len(text) <= MESSAGE_MAX else f"{text[:MESSAGE_MAX]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def plain(text: str) -> str:
    """A text that other programs can have: lone surrogates are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def place_of(error: BaseException) -> str:
    """Where in the author's files an error was raised: ` at plugin.py:31 (run)`."""
    frames = frames_of(error)
    if not frames:
        return ""
    file, line, name = frames[-1]
    return f" at {named(file)}:{line} ({name})"


def frames_of(error: BaseException) -> list[tuple[str, int, str]]:
    """File, line and function of the author's frames, innermost last."""
    frames = []
    walked: types.TracebackType | None = error.__traceback__
    while walked is not None:
        code = walked.tb_frame.f_code
        if is_own(code.co_filename):
            frames.append((code.co_filename, walked.tb_lineno, code.co_qualname))
        walked = walked.tb_next
    return frames


def definition_of(code: types.CodeType) -> tuple[str, int, str]:
    """File, line and name of a function, below its decorators."""
    lines = range(code.co_firstlineno, code.co_firstlineno + DECORATORS_MAX)
    begins = (line for line in lines if line_of(code.co_filename, line).startswith(("def ", "async def ")))
    return code.co_filename, next(begins, code.co_firstlineno), code.co_qualname


def line_of(file: str, line: int) -> str:
    """A line of a file, without its indentation."""
    lines = _lines.get(file, [])
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""
