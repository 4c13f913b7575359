"""Tests of the adapters in trainers' own loops, each in the environment of its trainer (`clients/python/adapters/environments`)."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from driven import driven  # noqa: E402,F401
