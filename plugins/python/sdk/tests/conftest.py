"""Tests run against a fake of the generated bindings, which has to be there before the package is imported."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fake_world

from espalier_sdk import exports


@pytest.fixture(autouse=True)
def world() -> Iterator[fake_world.World]:
    """A fresh engine, and no plugin yet."""
    fake_world.world.__init__()  # type: ignore[misc]
    exports.registered = None
    exports.Provider.world = None
    stderr = sys.stderr
    yield fake_world.world
    sys.stderr = stderr
