"""The types of the package, as a checker sees them under the oldest Python that authors may have."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent


@pytest.mark.skipif(find_spec("mypy") is None, reason="no mypy here")
def test_the_types_hold(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    run = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
