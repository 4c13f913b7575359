"""Kills engine, trainer and server at random points of a training, again and again, and looks whether any group was trained twice or lost.

Each time the same command is given again. At times the newest checkpoint is removed in between, so that the trainer goes on from the one
before the last. What was lost is told in trajectory-seconds: the time of rollouts that had to be sampled again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import history
from processes import started

#: Longest time of one start.
START_S = 1800.0
#: How often a kill comes while the trainer starts, within so many seconds; else it comes within so many after the trainer has begun.
STARTING, STARTING_S = 0.2, 10.0
TRAINING_S = 20.0
#: How often the newest checkpoint is removed before the next start.
REMOVED = 0.5


def run(words: List[str], args: argparse.Namespace) -> int:
    """The exit code: 0 where each group was trained once."""
    draw = random.Random(f"kills {args.seed}")
    targets = ["engine", "trainer", "server"] * args.kills
    draw.shuffle(targets)
    command = [sys.executable, str(Path(__file__).with_name("demo.py")), *words, "--kills", "0"]
    folder: Path = args.folder
    removed = 0
    again: List[float] = []
    for number, target in enumerate(targets, start=1):
        starting = draw.random() < STARTING
        after_s = draw.uniform(0, STARTING_S if starting else TRAINING_S)
        folder.mkdir(parents=True, exist_ok=True)
        since_ms = round(time.time() * 1000)
        with (folder / "kills.log").open("ab") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log)
        if not killed(child, folder, target, starting, after_s):
            say(f"the training was over after {number - 1} kills: choose more --steps")
            return 1
        killed_ms = round(time.time() * 1000)
        code = child.wait(START_S)
        if code != 1:
            say(f"kill {number}: the demo ended with exit code {code} when its {target} was killed; expected 1")
            return 1
        cut = unfinished(folder, args.espalier, since_ms, killed_ms)
        again += cut
        since = "was started" if starting else "began"
        say(
            f"kill {number} of {len(targets)}: the {target}, {after_s:.1f} s after the trainer {since}, at step {last_step(folder)}; "
            f"{len(cut)} rollouts begin again, {sum(cut):.1f} trajectory-seconds"
        )
        whole = sorted((folder / "checkpoints").glob("step-?????"))
        if len(whole) > 1 and draw.random() < REMOVED:
            shutil.rmtree(whole[-1])
            removed += 1
            say(f"{whole[-1].name} is removed: the trainer goes on from the checkpoint before")
    say("the last start, to the end")
    if subprocess.run(command, check=False).returncode != 0:
        return 1
    say(f"{len(targets)} kills (seed {args.seed}), {removed} checkpoints removed")
    say(f"sampled again: {len(again)} rollouts, {sum(again):.1f} trajectory-seconds")
    say(trained_again(folder))
    return 0


def killed(child: "subprocess.Popen[bytes]", folder: Path, target: str, starting: bool, after_s: float) -> bool:
    """Kills a process of the demo some time after its trainer was started, or has begun; false where the training was over before."""
    known, begins = read(folder / "trainer.pid"), count_begins(folder)
    deadline = time.monotonic() + START_S
    begun = None
    while time.monotonic() < deadline:
        if child.poll() == 0:
            return False
        if child.poll() is not None:
            raise SystemExit(f"the demo ended with exit code {child.poll()} before its {target} was killed; see {folder / 'kills.log'}")
        trainer = read(folder / "trainer.pid")
        if begun is None and trainer and trainer != known and (starting or count_begins(folder) > begins):
            begun = time.monotonic()
        if begun is not None and time.monotonic() - begun >= after_s:
            one = read(folder / f"{target}.pid")
            if one and started(one["pid"]) == one["started"]:
                os.kill(one["pid"], signal.SIGKILL)
                return True
        time.sleep(0.05)
    raise SystemExit(f"no trainer was started within {START_S:.0f} s")


def read(file: Path) -> Dict[str, Any]:
    try:
        known: Dict[str, Any] = json.loads(file.read_text())
        return known
    except (OSError, ValueError):
        return {}


def count_begins(folder: Path) -> int:
    return sum(event["event"] == "begin" for event in history.read(folder / "trainer.jsonl"))


def last_step(folder: Path) -> int:
    return max(history.steps(history.read(folder / "trainer.jsonl")), default=0)


def unfinished(folder: Path, espalier: Path, since_ms: int, killed_ms: int) -> List[float]:
    """The rollouts that were being sampled when a process was killed, and begin again: how long each had taken, seconds."""
    show = [str(espalier), "--store", str(folder / "store"), "show", "train-grpo", "--json", "--all"]
    done = subprocess.run(show, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        # No group has been opened yet.
        return []
    attempts = [attempt for group in json.loads(done.stdout)["group_list"] for attempt in group["attempts"]]
    # Those of earlier starts were counted then.
    cut = [attempt for attempt in attempts if attempt["state"] in ("running", "cut") and attempt["started_ms"] >= since_ms]
    return [max((attempt["ended_ms"] or killed_ms) - attempt["started_ms"], 0) / 1000 for attempt in cut]


def trained_again(folder: Path) -> str:
    events = history.read(folder / "trainer.jsonl")
    trained = sum(event["event"] == "trained" for event in events)
    return f"trained again: {trained - len(history.steps(events))} of {trained} steps; their groups were delivered again as they were"


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
