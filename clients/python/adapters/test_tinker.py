"""A step of training in SkyRL on the CPU, by tinker's client: the server of SkyRL with its JAX backend."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Iterator

import httpx
import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("skyrl")
import tinker
import tiny
from espalier import TaskClient
from espalier.adapters import ImagesLost
from espalier.adapters.tinker import data, train
from espalier.delivery import Batch
from espalier.samples import Group, with_advantages
from fake_tasks import FakeTasks

#: Seconds until the server answers, on a busy machine.
PATIENCE = 300


def groups(change: Any = lambda raw: None, images: str = "refuse") -> Group:
    fake = FakeTasks()
    fake.change = change
    with TaskClient("run", base_url="http://fake", transport=fake.transport(), images=images) as client:
        return with_advantages(client.rollout({"id": "t", "instruction": "go"}, group_size=4), "grpo")


def test_the_versions_are_those_that_are_promised() -> None:
    assert (version("skyrl"), version("tinker")) == ("0.3.0", "0.16.1")


def test_a_row_is_a_datum_whose_masked_tokens_have_no_advantage() -> None:
    rows = data([groups()])
    assert len(rows) == 4 and rows[1].model_input.to_ints() == [1, 2, 3, 11, 11, 12, 13, 4]
    loss = {name: value.to_numpy() for name, value in rows[3].loss_fn_inputs.items()}
    assert loss["target_tokens"].tolist() == [2, 3, 13, 11, 12, 13, 4, 5]
    assert loss["logprobs"][2:6].tolist() == [-0.5, -0.25, -0.125, -1.0]
    assert (loss["advantages"] != 0).tolist() == [False, False, True, True, False, True, False, False]

    def imaged(raw: Any) -> None:
        raw["images"] = 1
        raw["trajectories"][0]["segments"][0]["images"] = [{"digest": "cd" * 32, "start": 0, "len": 2}]

    with pytest.raises(ImagesLost, match="1 images"):
        data([groups(imaged, images="omit")])


@pytest.fixture(scope="session")
def skyrl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SkyRL's server; its engine is a process of its own, which it starts by `uv run` as it was started itself."""
    folder = tmp_path_factory.mktemp("skyrl")
    tiny.model(folder / "model")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    bin = Path(sys.executable).parent
    environment = {**os.environ, "VIRTUAL_ENV": str(bin.parent), "PATH": f"{bin}:{os.environ['PATH']}", "JAX_PLATFORMS": "cpu", "UV_OFFLINE": "1"}
    words = ["uv", "run", "--no-project", "--python", sys.executable, "-m", "skyrl.tinker.api", "--base-model", str(folder / "model")]
    words += ["--backend", "jax", "--backend-config", '{"max_lora_adapters":2,"max_lora_rank":8}', "--checkpoints-base", str(folder / "kept")]
    words += ["--database-url", f"sqlite:///{folder}/tinker.db", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                if httpx.get(f"{url}/api/v1/healthz", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert server.poll() is None and time.monotonic() < until, (folder / "log").read_text()[-3000:]
            time.sleep(0.5)
        os.environ["MODEL"] = str(folder / "model")
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def test_steps_in_skyrl_raise_what_was_rewarded(skyrl: str) -> None:
    service = tinker.ServiceClient(base_url=skyrl, api_key="tml-local")
    training = service.create_lora_training_client(base_model=os.environ["MODEL"], rank=8)
    group = groups()
    batch = Batch([group], [])

    def likelihood() -> Any:
        """The log likelihood of the tokens that train, by trajectory."""
        out = train(training, batch, learning_rate=0.0)
        rows = [np.asarray(one["logprobs"].to_numpy()) for one in out.loss_fn_outputs]
        return [float(row[[2, 3, 5]].sum()) for row in rows]

    before = likelihood()
    for _ in range(5):
        assert train(training, batch, learning_rate=1e-2).metrics is not None
    after = likelihood()
    assert len(before) == 4 and all(np.isfinite(after))
    rise = [b - a for a, b in zip(before, after)]
    assert rise[3] > rise[0], (before, after)
    assert train(training, Batch([], []), learning_rate=1e-2) is None
