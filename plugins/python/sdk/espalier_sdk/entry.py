"""The module that componentize-py makes a component of: it imports the author's file, as `plugin.toml` says, and has the classes
of the exports. Everything here runs once, while the component is built."""

import encodings.idna  # noqa: F401 sockets ask for it before they find that there is no network
import importlib
import io
import os
import sys
import tomllib
import traceback
from typing import Any

from . import exports, log, preload, seeding, source, watch, wit
from .exports import Configurable, GroupReward, Harness, Judge, Provider, Reward, TaskGenerator

__all__ = ["Configurable", "GroupReward", "Harness", "Judge", "Provider", "Reward", "TaskGenerator"]

MANIFEST = "plugin.toml"
#: What the standard library imports only when one of its functions is called: `Counter.most_common`, `strptime`, ... There are no
#: files then.
LAZILY_IMPORTED = ("_strptime", "copy", "heapq")


class BuildError(Exception):
    """Why the author's file does not become a plugin."""


def load() -> None:
    """Imports the author's file and makes ready what runs beside it. Errors: ``BuildError``."""
    folder = next((path for path in sys.path if os.path.isfile(os.path.join(path, MANIFEST))), None)
    if folder is None:
        raise BuildError(f"no {MANIFEST} on the Python path: expected the project's folder as `--python-path`")
    with open(os.path.join(folder, MANIFEST), "rb") as file:
        manifest = tomllib.load(file)
    kind, entry = manifest.get("kind"), manifest.get("entry", "plugin.py")
    path = os.path.join(folder, entry)
    if not os.path.isfile(path):
        raise BuildError(f"no file {entry} in the project; `entry` of {MANIFEST} names another")
    random_source = seeding.install()
    for module in LAZILY_IMPORTED:
        importlib.import_module(module)
    _import(path, folder)
    plugin = exports.registered
    decorator = str(kind).replace("-", "_")
    if plugin is None:
        raise BuildError(f'{entry}: nothing has the decorator @{decorator}, which {MANIFEST} asks for (kind = "{kind}")')
    if plugin.kind != kind:
        found = plugin.kind.replace("-", "_")
        raise BuildError(f'{entry}: found @{found}, expected @{decorator}: {MANIFEST} says kind = "{kind}"')
    source.keep(folder)
    preload.load(source.is_own)
    source.keep(folder)
    watch.start(wit.diagnostics.at, source.named, source.is_own)
    # What is printed never fails, lone surrogates included.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    log.forward_logging()
    random_source.begin()


def _import(path: str, folder: str) -> None:
    sys.path.insert(0, os.path.dirname(path))
    try:
        importlib.import_module(os.path.splitext(os.path.basename(path))[0])
    except SyntaxError as error:
        text = "".join(traceback.format_exception_only(error)).rstrip()
        raise BuildError(text.replace(folder.rstrip("/") + "/", "")) from None
    except BaseException as error:  # noqa: BLE001, an author's file may raise anything
        source.keep(folder, error)
        raise BuildError(source.error_text(error)) from None


def _run() -> Any:
    if wit.is_component():
        load()


_run()
