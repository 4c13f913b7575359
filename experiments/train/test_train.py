"""The parts of the demo that need no PyTorch and no server: goals, the trainer's log, the plot, processes, settings."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

tomllib = pytest.importorskip("tomllib", reason="the driver needs Python 3.11")
sys.path.insert(0, str(Path(__file__).parent))

import demo  # noqa: E402
import goals  # noqa: E402
import history  # noqa: E402
import report  # noqa: E402
from processes import Process, end_leftover, members  # noqa: E402


def task(name: str) -> Dict[str, Any]:
    actions = [f"get 1 {name} dust", f"craft 1 {name} using 1 {name} dust"]
    return {"id": f"textcraft-{name}", "data": {"goal": name}, "private": {"reference": {"actions": actions}}}


def ids(file: Path) -> List[str]:
    return [json.loads(line)["id"] for line in file.read_text().splitlines()]


def test_goals_are_drawn_by_seed_and_never_evaluated_on_what_is_trained(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task(f"thing{number}")) + "\n" for number in range(20)))
    drawn = {}
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        folder = tmp_path / name
        folder.mkdir()
        goals.split(tasks, folder, seed, 12, 5)
        drawn[name] = ids(folder / "train.jsonl"), ids(folder / "held-out.jsonl")
    assert drawn["a"] == drawn["b"] != drawn["c"]
    train, held_out = drawn["a"]
    assert (len(train), len(held_out)) == (12, 5) and not set(train) & set(held_out)
    answers = [json.loads(line) for line in (tmp_path / "a/answers.jsonl").read_text().splitlines()]
    goal = train[0].removeprefix("textcraft-")
    assert answers[0] == {"text": f" get 1 {goal} dust", "when": f"Goal: craft {goal}."} and len(answers) == 24
    # What was drawn stays, whatever becomes of the task file.
    tasks.write_text("")
    goals.split(tasks, tmp_path / "a", 7, 12, 5)
    with pytest.raises(SystemExit, match="has 0 goals; 12 to train on and 5"):
        (tmp_path / "d").mkdir()
        goals.split(tasks, tmp_path / "d", 7, 12, 5)


def begin(step: int, *groups: str) -> Dict[str, Any]:
    return {"event": "begin", "step": step, "groups": list(groups)}


def trained(step: int, *groups: str) -> Dict[str, Any]:
    return {"event": "trained", "step": step, "groups": list(groups), "reward": 0.5}


ONCE = [begin(0), trained(1, "a", "b"), {"event": "saved", "step": 1, "step_s": 2.0}, trained(2, "c", "d")]
HISTORIES = [
    ("in one go", ONCE, "abcd", []),
    ("killed before the checkpoint of step 2", [*ONCE, begin(1, "a", "b"), trained(2, "d", "c")], "abcd", []),
    ("killed after it", [*ONCE, begin(2, "a", "b", "c", "d")], "abcd", []),
    ("from the checkpoint before the last", [*ONCE, trained(3, "e"), begin(1, "a", "b"), trained(2, "c", "e"), trained(3, "d")], "abcde", []),
    ("trained twice", [*ONCE, trained(3, "a")], "abcd", ["group a was trained 2 times"]),
    ("lost", ONCE, "abcde", ["group e was never trained"]),
    ("not of the run", ONCE, "abc", ["group d was trained, and the run never delivered it"]),
    ("a step is missing", [*ONCE, trained(4, "e")], "abcde", ["steps [3] are not in the log"]),
    ("a checkpoint names one twice", [*ONCE, begin(2, "a", "a")], "abcd", ["the checkpoint of step 2 names a group twice"]),
]


@pytest.mark.parametrize("name, events, delivered, expected", HISTORIES, ids=[row[0] for row in HISTORIES])
def test_the_history_says_what_was_trained_twice_and_what_was_lost(name: str, events: List[Any], delivered: str, expected: List[str]) -> None:
    assert history.problems(events, delivered) == expected


def test_the_log_may_end_in_half_a_line(tmp_path: Path) -> None:
    log = tmp_path / "trainer.jsonl"
    log.write_text("\n".join(json.dumps(event) for event in ONCE) + '\n{"event": "tra')
    assert history.read(log) == ONCE
    assert history.steps(ONCE)[1] == {**trained(1, "a", "b"), "step_s": 2.0}
    assert history.read(tmp_path / "none.jsonl") == []


def test_the_plot_fits_a_terminal() -> None:
    points = [(step, value) for step, value in enumerate((0.1, 0.25, 0.4, 0.38, 0.6, 0.75, 0.85, 0.9), start=1)]
    lines = report.plot(points, "reward")
    assert max(len(line) for line in lines) <= report.WIDTH
    assert lines == [
        "reward",
        "  1.00 |",
        "       |                                                                .......*",
        "       |                                                      .......*..",
        "  0.73 |                                               ....*..",
        "       |                                         *.....",
        "       |                                    .....",
        "  0.45 |                                ....",
        "       |               .....*.........*.",
        "       |         .*....",
        "  0.18 |   ......",
        "       |*..",
        "  0.00 |",
        "       +------------------------------------------------------------------------",
        "  step  1                                                                      8",
    ]
    assert report.plot([], "reward") == ["reward: no step yet"]
    assert any("*" in line for line in report.plot([(1, -0.25)], "reward"))


def test_trainings_of_several_seeds_are_shown_side_by_side(tmp_path: Path) -> None:
    def done(seed: int, before: float, after: float, seconds: float, small: str = "") -> None:
        folder = tmp_path / f"seed-{seed}{small}"
        folder.mkdir()
        summary = {"seed": seed, "held_out": {"before": before, "after": after}, "seconds": seconds}
        (folder / "summary.json").write_text(json.dumps(summary))

    done(7, 0.25, 0.8, 1080)
    done(7, 0.0, 0.0, 60, "-small")
    assert report.seeds(tmp_path, small=False) == []
    done(11, 0.2, 0.9, 1200)
    assert report.seeds(tmp_path, small=False) == [
        "",
        "held-out success            before     after   minutes",
        "seed 11                      20.0%     90.0%      20.0",
        "seed 7                       25.0%     80.0%      18.0",
        "mean                         22.5%     85.0%      19.0",
        "least                        20.0%     80.0%      18.0",
        "most                         25.0%     90.0%      20.0",
    ]


def test_a_killed_process_is_told_and_what_it_left_is_ended(tmp_path: Path) -> None:
    one = Process("engine", ["sh", "-c", "echo well; sleep 600 & wait"], tmp_path)
    os.kill(one.pid, signal.SIGKILL)
    assert one.wait(10.0) == -signal.SIGKILL
    assert one.ended().splitlines()[0].startswith("the engine was killed by signal 9")
    # Its child is still there, and the next start knows it by its session.
    end_leftover(tmp_path, "engine")
    assert members(one.pid) == [] and not (tmp_path / "engine.pid").exists()


def test_a_process_that_only_has_the_same_id_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        (tmp_path / "server.pid").write_text(json.dumps({"pid": other.pid, "started": "1"}))
        end_leftover(tmp_path, "server")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_processor_time_is_told(tmp_path: Path) -> None:
    busy = Process("busy", [sys.executable, "-c", "while True: pass"], tmp_path)
    deadline = time.monotonic() + 60
    while busy.cpu_s() == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert busy.cpu_s() > 0
    busy.stop()
    assert busy.code() is not None


def test_settings_are_written_as_toml() -> None:
    words = demo.settings({"name": "a\"b", "tasks.limit": 3, "rewards": '[{plugin = "x"}]', "file": Path("/a b")})
    assert [tomllib.loads(word) for word in words[1::2]] == [
        {"name": 'a"b'}, {"tasks": {"limit": 3}}, {"rewards": [{"plugin": "x"}]}, {"file": "/a b"},
    ]  # fmt: skip


def test_a_folder_belongs_to_one_setting_and_experiments_play_the_same_episodes(tmp_path: Path) -> None:
    names = "seed steps groups size train_goals held_out episodes passes small rows_max sft_rate rate model"
    args = argparse.Namespace(folder=tmp_path, **{name: 1 for name in names.split()})
    demo.Demo(args).check_settings()
    demo.Demo(args).check_settings()
    args.steps = 2
    with pytest.raises(demo.Failed, match="steps is 1, and 2 is asked for"):
        demo.Demo(args).check_settings()
