"""The generated bindings, as far as the plugin's world has them, and the one way to call an import.

A world has the modules of what it imports and no others, so each is imported by itself. It is done here, at the top: a component
has no files once it runs. Outside of a component there are none, and a call says so.
"""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from . import watch
from .failures import Failure, Invalid, from_wit

T = TypeVar("T")


class Absent:
    """Stands for a module that the plugin's world does not have."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise Invalid(
            f"`{self._name}` is not there: this kind of plugin does not have it, no file of the project names it, or no engine runs it"
        )


def _module(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(f"wit_world.{name}")
        except ImportError:
            continue
    return Absent(names[-1].rpartition(".")[2])


class NoErr(Exception):
    """Stands for the error of an import where there is no engine."""

    value: Any = None


try:
    Err: Any = importlib.import_module("componentize_py_types").Err
except ImportError:
    Err = NoErr


# Where a world has two interfaces called `types`, their modules are named by their packages too.
types = _module("imports.espalier_base_types", "imports.types")
environment_types = _module("imports.espalier_environment_types")
log = _module("imports.log")
blobs = _module("imports.blobs")
settings = _module("imports.settings")
random = _module("imports.random")
messages = _module("imports.messages")
conversations = _module("imports.conversations")
environments = _module("imports.environments")
sandboxes = _module("imports.sandboxes")
scoring = _module("imports.scoring")
creation = _module("imports.creation")
browsers = _module("imports.browsers")
services = _module("imports.services")
diagnostics = _module("imports.diagnostics")
reports = _module("imports.reports")
scores = _module("imports.scores")
judge = _module("exports.judge")


def is_component() -> bool:
    """Whether there is an engine to call."""
    return not isinstance(log, Absent)


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Calls an import. Errors: its failure, as an exception."""
    watch.host_call()
    try:
        return function(*arguments)
    except Err as error:
        failure: Failure = from_wit(error.value)
        raise failure from None
    finally:
        watch.called()
        watch.host_call()
