"""A real service with a run that takes tasks, over a scripted model: what trainers are tried against. Needs the programs of `make build`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Iterator

import httpx
import pytest
from daemon import PROGRAM, Daemon

PLUGINS = Path(__file__).resolve().parents[3] / "plugins/dist"
SCRIPTED = Path(os.environ.get("ESPALIER_BIN", "")).parent / "espalier-scripted"
needed = pytest.mark.skipif(
    PROGRAM is None or not SCRIPTED.exists() or not (PLUGINS / "answer.wasm").exists(), reason="no service, scripted model or plugins"
)

#: Answers right and wrong, by the seed of the rollout: groups with different rewards.
ANSWERS = ("left", "right")


class Driven:
    """One run, and the service that carries it."""

    def __init__(self, size: int, more: str = "") -> None:
        self.model = subprocess.Popen([str(SCRIPTED), *ANSWERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.model.stdout is not None
        model = self.model.stdout.readline().strip()
        self.daemon = Daemon("--model-server", model.removeprefix("http://"), "--run-folder", str(PLUGINS))
        self.key = self.daemon.key("trainer", "runs:write")
        experiment = (
            f'name = "driven"\nseed = 7\n[tasks.trainer]\n[groups]\nsize = {size}\nmin_size = {size}\nconcurrent_rollouts = 8\n'
            f'[models.policy]\nkind = "llama-cpp"\nurl = "{model}"\nsampling = {{ max_tokens = 32 }}\n'
            f'[harness]\nplugin = "{PLUGINS}/answer.wasm"\n[[rewards]]\nplugin = "{PLUGINS}/exact-match.wasm"\n{more}'
        )
        begun = self.ask("POST", "/v1/runs", {"experiment": experiment})
        self.run = begun["run_id"]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(method, self.daemon.url + path, json=body, headers={"x-api-key": self.key}, timeout=90)
        assert answer.status_code < 400, answer.text
        return answer.json()

    def task(self, name: str) -> Any:
        return {"id": name, "instruction": f"say left or right, {name}", "private": {"answer": "left"}}

    def groups(self) -> int:
        return sum(self.ask("GET", f"/v1/runs/{self.run}")["counts"]["groups"].values())

    def end(self) -> None:
        self.daemon.end([])
        assert self.model.stdin is not None
        self.model.stdin.close()
        self.model.wait(30)


@pytest.fixture(scope="session")
def driven() -> Iterator[Driven]:
    driven = Driven(4)
    yield driven
    driven.end()


def tasks_file(folder: Path, tasks: Any) -> Path:
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return file
