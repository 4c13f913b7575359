"""Goals to train on and goals to evaluate on, drawn by a seed before anything is trained; and the reference solutions as answers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Dict, List


def split(tasks: Path, folder: Path, seed: int, train: int, held_out: int) -> None:
    """Writes `train.jsonl`, `held-out.jsonl` and `answers.jsonl`, unless they are there. No goal is in both of the first two."""
    files = [folder / name for name in ("train.jsonl", "held-out.jsonl", "answers.jsonl")]
    if all(file.exists() for file in files):
        return
    goals = [json.loads(line) for line in tasks.read_text().splitlines() if line.strip()]
    if len(goals) < train + held_out:
        raise SystemExit(f"{tasks} has {len(goals)} goals; {train} to train on and {held_out} to evaluate on are asked for")
    goals.sort(key=lambda goal: str(goal["id"]))
    random.Random(f"goals {seed}").shuffle(goals)
    evaluated, trained = goals[:held_out], goals[held_out : held_out + train]
    assert not {goal["id"] for goal in evaluated} & {goal["id"] for goal in trained}
    for file, lines in zip(files, (trained, evaluated, [answer for goal in trained for answer in answers(goal)])):
        part = file.with_suffix(".part")
        part.write_text("".join(json.dumps(line) + "\n" for line in lines))
        part.rename(file)


def answers(goal: Dict[str, Any]) -> List[Dict[str, str]]:
    """What a scripted model says to solve it: behind the prompt sign each action has a space before it."""
    when = f"Goal: craft {goal['data']['goal']}."
    return [{"text": f" {action}", "when": when} for action in goal["private"]["reference"]["actions"]]
