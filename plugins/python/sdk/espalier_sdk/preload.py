"""Imports at build what would be imported only when the plugin runs: by then a component has no files.

That is what functions of the author's files import, what functions of the modules import that these use (``Counter.most_common``
imports :mod:`heapq`), and the usual codecs.
"""

import codecs
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

#: Parts of the standard library that do nothing in a component, and bring much with them.
_USELESS = frozenset(
    {
        "antigravity",
        "asyncio",
        "concurrent",
        "ctypes",
        "curses",
        "doctest",
        "ensurepip",
        "idlelib",
        "multiprocessing",
        "pdb",
        "pip",
        "pydoc",
        "readline",
        "selectors",
        "socket",
        "ssl",
        "subprocess",
        "test",
        "this",
        "threading",
        "tkinter",
        "tracemalloc",
        "turtle",
        "unittest",
        "webbrowser",
    }
)
_CODECS = ("ascii", "latin-1", "cp1252", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "unicode_escape", "hex", "base64")
_STATEMENT = re.compile(r"\s*(?:from\s+(?P<base>[.\w]+)\s+)?import\s+(?P<things>[\w(].*)")


def load(is_own: Callable[[str], bool]) -> None:
    """Imports what the author's files may need, where ``is_own`` says so of a file. What cannot be imported is left to fail."""
    for name in _CODECS:
        codecs.lookup(name)
    scanned: set[str] = set()
    while True:
        # A function of one of the author's files may import another one.
        own = [module for module in list(sys.modules.values()) if is_own(_file(module)) and module.__name__ not in scanned]
        if not own:
            return
        for module in own:
            scanned.add(module.__name__)
            for name in [*_imported(module), *_late_imports_of_used(module, scanned)]:
                _import(name)


def _late_imports_of_used(module: ModuleType, scanned: set[str]) -> Iterator[str]:
    """What the functions of the modules import that this module uses."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        used = sys.modules.get(name) if isinstance(name, str) else None
        if used is not None and used.__name__ not in scanned and not used.__name__.startswith("espalier_sdk"):
            scanned.add(used.__name__)
            yield from _imported(used)


def _imported(module: ModuleType) -> list[str]:
    """Names of the modules that a module imports, its functions included. A syntax tree would stay as free memory in the component:
    lines are looked at instead."""
    try:
        with open(_file(module), encoding="utf-8") as text:
            lines = text.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    package = getattr(module, "__package__", "") or ""
    names: list[str] = []
    for line in lines:
        statement = _STATEMENT.match(line)
        if statement is None:
            continue
        things = [thing.partition(" as ")[0].strip(" ()") for thing in statement["things"].partition("#")[0].split(",")]
        if statement["base"] is None:
            names.extend(things)
            continue
        base = _absolute(statement["base"], package)
        # What is imported from a package may be a module of it.
        names.extend([base, *(f"{base}.{thing}" for thing in things if thing.isidentifier())])
    return names


def _absolute(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:
        return ""


def _import(name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")) or name in sys.modules or name.partition(".")[0] in _USELESS:
        return
    try:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    except Exception:  # noqa: BLE001, S110, whatever it is, the author's own import will show it
        pass


def _file(module: Any) -> str:
    return getattr(module, "__file__", None) or ""
