"""The examples and the program in the README, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import daemon
import making
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


PAGE = re.findall(r"```python\n(.*?)```", (HERE / "../../docs/python.md").read_text(), re.DOTALL)
#: Those of the reader want a run that goes on: `test_service_delivery.py`.
PAGE = [code for code in PAGE if "GroupReader" not in code]
SAID = [
    "42\n 3\none\ntwo\n2\n\nTrue\n",
    "['0', '1', '4', '9', '16']\n",
    "[]\nrun.g0.r0.a0 submitted 1.0\n11 5 float32\n8 2 float32\nrun.g0.r1.a0 limit-turns 0.0\n2 0 float32\n"
    "run.g0.r3.a0 guest-trap None\n2 0 float32\n",
    "run.g0.r0.a0 None 0.7071057811879616 3\nrun.g0.r1.a0 None -0.7071057811879616 1\nrun.g0.r3.a0 None None 1\n",
    "0 1.0 8 5\n0 1.0 3 2\n3 0.0 1 0\n",
]


@pytest.mark.parametrize("number", range(len(SAID)))
def test_the_examples_of_the_reference(number: int, served: Any, tmp_path: Path) -> None:
    assert len(PAGE) == len(SAID)
    making.write(tmp_path / "samples.msgpack", [making.group()])
    (tmp_path / "samples.msgpack.images").mkdir()
    (tmp_path / "samples.msgpack.images" / f"{'cd' * 32}.png").write_bytes(b"pixels")
    assert run(PAGE[number], served, tmp_path) == SAID[number]
