"""The service keeps to its own description, whatever it is asked: `fuzz.py` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import daemon
import pytest

pytestmark = daemon.needed


@pytest.mark.skipif(find_spec("schemathesis") is None, reason="no schemathesis here")
def test_two_thousand_cases(served: Any) -> None:
    scopes = "sandboxes:write,runs:write,plugins:write,metrics"
    key = served.another_key("fuzz", "--sandboxes", "100", "--runs", "20", scopes=scopes)
    program = Path(__file__).parent / "fuzz.py"
    run = subprocess.run(
        [sys.executable, str(program), served.url, key, "2000"], capture_output=True, text=True, timeout=900, check=False
    )
    print(run.stdout)
    assert run.returncode == 0, (run.stdout + run.stderr)[-8000:]
