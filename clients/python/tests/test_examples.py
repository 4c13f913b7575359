"""The examples and the program in the README, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import daemon
import pytest

pytestmark = daemon.needed

HERE = Path(__file__).resolve().parent.parent
PRINTED = {
    "first": "42\n1\n2\n3\n",
    "many": "50 succeeded; the last said: 49 squared is 2401\n",
    "come_back": "step 1\nstep 2\nstep 3\nstep 4\nstep 5\nexit code 0\n",
    "conversation": "hello world\n42\nserved from inside\n",
}


def run(code: str, served: Any, folder: Path) -> str:
    env = {**os.environ, "ESPALIER_URL": served.url, "ESPALIER_API_KEY": served.key, "PYTHONPATH": str(HERE / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(path.stem for path in (HERE / "examples").glob("*.py")))
def test_examples(name: str, served: Any, tmp_path: Path) -> None:
    assert run((HERE / f"examples/{name}.py").read_text(), served, tmp_path) == PRINTED[name]


@pytest.mark.parametrize("page", ["README.md", "../../README.md"])
def test_the_program_of_the_page(page: str, served: Any, tmp_path: Path) -> None:
    programs = [code for code in re.findall(r"```python\n(.*?)```", (HERE / page).read_text(), re.DOTALL) if "SandboxClient" in code]
    assert programs or page != "README.md"
    for code in programs:
        # Images of registries are not to be had in tests; this machine's own programs do.
        code = code.replace('"python:3.12-slim"', '"host"').replace("python answer.py", "python3 answer.py")
        assert run(code, served, tmp_path).startswith("42\n")
        assert (tmp_path / "answer.py").read_text() == "print(6 * 7)"
