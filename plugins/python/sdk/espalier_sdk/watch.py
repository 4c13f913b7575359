"""Tells the engine on which line of the author's files the plugin is, so that it can name an endless loop that it stops.

Lines, and jumps within a line, are counted by ``sys.monitoring``. Each is told the first time, the second, the fourth ... since the last
call of the engine or by it; after :data:`HITS_MAX` times it is no longer counted, so that a loop is slowed down for its first rounds
only. A line that runs for the first time behind such a loop has all lines counted again, in case the loop is entered a second time; how
often that happens is bounded by :data:`GAP`. A plugin that calls the engine very often has only its loops told in the end.

Each call of a regular expression is told before it starts, since one may never end. A call of the engine is told when it begins, and
again when it is over.
"""

import gc
import re
import sys
import types
from collections.abc import Callable
from typing import Any

#: Rounds of a loop after which its lines are no longer counted: a power of two.
HITS_MAX = 64
#: Counted lines before all are counted again; doubled each time, until the next call of the engine.
GAP = 256
#: Calls after which a line is told only when it ran :data:`LATE_HITS` times: a line by itself is then no longer told.
EARLY_CALLS = 1_000
LATE_HITS = 8

_TOOL = 4  # one of the numbers that CPython gives to nobody

#: Of CPython 3.12 and later: an author's checks may run under an earlier one.
_monitoring: Any = getattr(sys, "monitoring", None)


class _Watch:
    def __init__(self, tell: Callable[[str, int], object], named: Callable[[str], str], is_own: Callable[[str], bool]) -> None:
        self.tell = tell
        self.named = named
        self.is_own = is_own
        self.hits: dict[tuple[str, int, int], int] = {}
        self.since_restart = 0
        self.gap = GAP
        self.quiet = False
        self.calls = 0
        self.told_from = 1
        #: Told last, unless the engine was called since.
        self.told: tuple[str, int] | None = None
        self.lines: dict[tuple[types.CodeType, int], int] = {}

    def line(self, code: types.CodeType, line: int) -> Any:
        """Counts a line: called by the interpreter."""
        return self.count(code, line, -1)

    def jump(self, code: types.CodeType, offset: int, _destination: int) -> Any:
        """Counts a jump: of a loop within one line."""
        return self.count(code, 0, offset)

    def match(self, code: types.CodeType, offset: int, function: object, first: object) -> Any:
        """Tells the line of a call where it is one of a regular expression, and is not asked about this place again where it is not."""
        if not matches(function, first):
            return _monitoring.DISABLE
        key = (code, offset)
        line = self.lines.get(key) or self.lines.setdefault(key, line_at(code, offset))
        if self.told != (code.co_filename, line):
            self.say(code.co_filename, line)
        return None

    def say(self, file: str, line: int) -> None:
        """Tells the engine."""
        self.told = (file, line)
        self.tell(self.named(file), line)

    def count(self, code: types.CodeType, line: int, offset: int) -> Any:
        key = (code.co_filename, line, offset)
        count = self.hits.get(key, 0) + 1
        self.hits[key] = count
        self.since_restart += 1
        if count & (count - 1) == 0 and count >= self.told_from:
            self.say(code.co_filename, line or line_at(code, offset))
        if count >= HITS_MAX:
            self.quiet = True
            return _monitoring.DISABLE
        if count == 1 and self.quiet and self.since_restart >= self.gap:
            self.gap *= 2
            self.restart()
        return None

    def restart(self) -> None:
        self.hits.clear()
        self.since_restart = 0
        self.quiet = False
        _monitoring.restart_events()


_watch: _Watch | None = None


def start(tell: Callable[[str, int], object], named: Callable[[str], str], is_own: Callable[[str], bool]) -> None:
    """Counts lines of the functions that are there, where ``is_own`` says so of their file."""
    global _watch
    if _monitoring is None:
        return
    _watch = _Watch(tell, named, is_own)
    events = _monitoring.events
    _monitoring.use_tool_id(_TOOL, "espalier")
    _monitoring.register_callback(_TOOL, events.LINE, _watch.line)
    _monitoring.register_callback(_TOOL, events.JUMP, _watch.jump)
    _monitoring.register_callback(_TOOL, events.CALL, _watch.match)
    for code in _codes(is_own):
        _monitoring.set_local_events(_TOOL, code, events.LINE | events.JUMP | events.CALL)


def host_call() -> None:
    """The engine is about to be called, or was: it is told the author's line that does so."""
    if _watch is None:
        return
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not _watch.is_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        _watch.say(frame.f_code.co_filename, frame.f_lineno)


def called() -> None:
    """The engine was called, or called the plugin: what was told before no longer counts."""
    if _watch is None:
        return
    _watch.told = None
    if _watch.hits:
        _watch.calls += 1
        if _watch.calls == EARLY_CALLS:
            _watch.told_from = LATE_HITS
        _watch.gap = GAP
        _watch.restart()


def matches(function: object, first: object) -> bool:
    """Whether a call is one of a regular expression. Nothing of the author's is asked: it might answer by running."""
    if type(function) is types.FunctionType:
        return function.__module__ == "re"
    if type(function) is types.BuiltinMethodType:
        return type(function.__self__) is re.Pattern
    return type(function) is types.MethodDescriptorType and type(first) is re.Pattern


def line_at(code: types.CodeType, offset: int) -> int:
    """The line of an instruction."""
    lines = (line for start, end, line in code.co_lines() if start <= offset < end and line)
    return next(lines, code.co_firstlineno)


def _codes(is_own: Callable[[str], bool]) -> list[types.CodeType]:
    """The code of all functions in the author's files, those inside of functions included."""
    found: dict[int, types.CodeType] = {}
    waiting = [one.__code__ for one in gc.get_objects() if isinstance(one, types.FunctionType)]
    while waiting:
        code = waiting.pop()
        if id(code) not in found and is_own(code.co_filename):
            found[id(code)] = code
            waiting.extend(inner for inner in code.co_consts if isinstance(inner, types.CodeType))
    return list(found.values())
