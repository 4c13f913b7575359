"""What is made is current, and the types hold."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent


# Other versions of Python write signatures another way.
@pytest.mark.skipif(sys.version_info < (3, 11), reason="made with Python 3.11 or newer")
def test_what_is_made_is_current() -> None:
    run = subprocess.run([sys.executable, "generate.py", "--check"], cwd=HERE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_who_reads_samples_loads_no_http_client() -> None:
    code = "import sys, espalier, espalier.samples; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False).returncode == 0


@pytest.mark.skipif(find_spec("mypy") is None, reason="no mypy here")
def test_the_types_hold(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    run = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
