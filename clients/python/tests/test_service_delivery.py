"""Groups of real runs over the real service: trainers that are killed, restored from older checkpoints, slow or many train each group once."""

from __future__ import annotations

import collections
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List

import both
import pytest
import runs
from daemon import PATIENCE, PROGRAM, Daemon
from espalier import GroupReader
from espalier.delivery import LeaseLost
from espalier.sandbox import Forbidden, Invalid, NotFound

pytestmark = runs.needed

HERE = Path(__file__).resolve().parent
GROUPS = 40


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Daemon]:
    """A service over a store with a finished run."""
    own = Daemon()
    try:
        runs.play(runs.experiment(tmp_path, GROUPS), own.store)
        yield own
    finally:
        own.end([])


def started(own: Daemon, key: str, *words: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src")])
    env = {**os.environ, "ESPALIER_URL": own.url, "ESPALIER_API_KEY": key, "PYTHONPATH": path}
    return subprocess.Popen([sys.executable, str(HERE / "trainer.py"), *words], stdout=subprocess.PIPE, text=True, env=env)


def test_a_trainer_that_is_killed_trains_each_group_once(own: Daemon, tmp_path: Path) -> None:
    """kill -9 at random deeds; each other time the checkpoint before the last is restored, and the service is killed with it."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    key = own.key("trainer", "runs:write")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    kills = 0
    for life in range(1000):
        trainer = started(own, key, "run", str(folder), "words")
        assert trainer.stdout is not None
        deeds = draw.randrange(3, 9) if kills < 8 else 1000
        said = [line for line, _ in zip(trainer.stdout, range(deeds))]
        if not said or said[-1].startswith("ended"):
            assert trainer.wait(PATIENCE) == 0, f"seed {seed}"
            break
        trainer.kill()
        trainer.wait(PATIENCE)
        kills += 1
        checkpoints = sorted(folder.glob("step-*.json"))
        if life % 2 and len(checkpoints) > 1:
            checkpoints[-1].unlink()
            own.kill()
            own.start()
    newest = json.loads(sorted(folder.glob("step-*.json"))[-1].read_text())
    times = collections.Counter(newest["weights"])
    # In a life it says eight deeds at most, and forty or more are to be done.
    assert kills >= 5 and set(times.values()) == {1}, f"seed {seed}: {times.most_common(3)}"
    assert len(times) == GROUPS, f"seed {seed}: some were lost"
    with GroupReader("words", base_url=own.url, api_key=key) as reader:
        counts = reader.counts()
    assert (counts.acknowledged, counts.available, counts.leased, counts.dropped) == (GROUPS, 0, 0, {}), f"seed {seed}"


def test_a_storm_of_trainers_trains_each_group_once(own: Daemon, tmp_path: Path) -> None:
    """16 trainers, of which 3 are killed with groups in their hands and 2 come too late."""
    key = own.key("storm", "runs:write")
    kinds = ["dies"] * 3 + ["slow"] * 2 + ["lasts"] * 11
    trainers = {}
    said: Dict[str, List[str]] = {}
    for number, kind in enumerate(kinds):
        if kind != "dies" and not said:
            # However busy the machine, there is still something for them to die with.
            said = {holder: trainer.communicate(timeout=PATIENCE)[0].splitlines() for holder, trainer in trainers.items()}
        trainers[f"t{number}"] = started(own, key, "storm", str(tmp_path), "words", f"t{number}", kind)
    for holder, trainer in [(holder, trainer) for holder, trainer in trainers.items() if holder not in said]:
        said[holder] = trainer.communicate(timeout=4 * PATIENCE)[0].splitlines()
    trained = collections.Counter(group for log in tmp_path.glob("*.log") for group in log.read_text().splitlines())
    assert set(trained.values()) == {1} and len(trained) == GROUPS, trained.most_common(3)
    with GroupReader("words", base_url=own.url, api_key=key) as reader:
        counts = reader.counts()
    assert (counts.acknowledged, counts.dropped) == (GROUPS, {})
    died = [holder for holder, trainer in trainers.items() if trainer.returncode == -9]
    late = [holder for holder, lines in said.items() if any(line.startswith("late") for line in lines)]
    print(f"{len(died)} trainers died, {len(late)} came late, {counts.redraws} groups were delivered again")
    # One that found nothing more to do when it came did neither.
    assert all(line == ["ended"] or holder in died + late for holder, line in said.items())
    assert died and counts.redraws > 0


@pytest.mark.parametrize("kind", both.KINDS)
def test_rows_errors_and_ends_of_the_real_service(kind: str, own: Daemon) -> None:
    key, other = own.key(f"r-{kind}", "runs:write"), own.key(f"s-{kind}", "runs:read")

    def reader(run: str = "words", key: str = key, **more: object) -> object:
        return both.reader(kind, run, base_url=own.url, api_key=key, **more)

    with pytest.raises(Invalid, match="gave text without token ids"), reader(advantages="dr-grpo") as reading:  # type: ignore[attr-defined]
        next(reading)
    reader().rewind(0)  # type: ignore[attr-defined]
    with reader(groups=16, exact=True) as reading:  # type: ignore[attr-defined]
        batches = list(reading)
        assert [len(batch) for batch in batches] == [16, 16]
        group = batches[0].groups[0]
        assert (group.kind, group.status, group.n_requested, len(group.trajectories)) == ("task", "ready", 2, 2)
        reading.trained(batches[0], 1)
        assert len(reading.ack(1)) == 16
        counts = reading.counts()
        assert (counts.acknowledged, counts.leased, counts.available, counts.finished) == (16, 16, 8, True)
        assert reading.rewind(0) == 32, "of this holder the leases, too"
    with pytest.raises(NotFound, match='no run "nobody"'):
        reader("nobody").counts()  # type: ignore[attr-defined]
    with pytest.raises(Forbidden):
        reader(key=other).rewind(0)  # type: ignore[attr-defined]
    with pytest.raises(Invalid, match="holder"):
        next(reader(holder="\n"))  # type: ignore[call-overload]
    with reader(groups=4, prefetch=0, lease_s=1, hold_s_max=1) as reading:  # type: ignore[attr-defined]
        batch = next(reading)
        reading.trained(batch, 1)
        assert both.until(lambda: reading.counts().leased == 0), "a trainer that hangs loses its groups"
        with pytest.raises(LeaseLost):
            reading.ack(1)


def test_a_run_delivers_over_its_socket_and_makes_no_more_than_it_may(tmp_path: Path) -> None:
    """With nobody to take its groups it stops at the bound; a trainer that comes gets all of them, and the run ends with the last."""
    store = tmp_path / "s"
    more = "[delivery]\nundelivered_max = 6\nsocket = true\n"
    file = runs.experiment(tmp_path, GROUPS, more)
    with subprocess.Popen(runs.command(file, store), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            assert both.until(lambda: len(list(store.glob("delivery/*.sock"))) == 1), "no socket"
            (socket,) = store.glob("delivery/*.sock")
            assert socket.parent.stat().st_mode & 0o077 == 0
            with GroupReader("words", base_url=f"unix:{socket}", groups=4, connect_within=30) as reader:
                assert both.until(lambda: reader.counts().available == 6)
                seen: List[str] = []
                for step, batch in enumerate(reader, start=1):
                    counts = reader.counts()
                    assert counts.available + counts.leased <= 6
                    reader.trained(batch, step)
                    seen += reader.ack(step)
            assert len(set(seen)) == len(seen) == GROUPS
            said, _ = run.communicate(timeout=PATIENCE)
        finally:
            run.kill()
    assert run.returncode == 0 and f"{GROUPS} ready" in said, said
    assert not list(store.glob("delivery/*.sock"))
    watched = subprocess.run(
        [str(PROGRAM), "groups", "words", "--watch", "--json", "--store", str(store)],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    told = json.loads(watched.stdout)
    assert (told["state"], told["acknowledged"], told["finished"]) == ("finished", GROUPS, True)
    assert told["holders"][0]["train_step"] == step
