"""What the trainer's log says: which groups the weights contain, whether each is in them once, what a step took."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterable, List

Event = Dict[str, Any]


def read(path: Path) -> List[Event]:
    """The lines of the log; the last may be cut."""
    events = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def steps(events: Iterable[Event]) -> Dict[int, Event]:
    """The steps that the weights went through, each with what was logged of it. A trainer that went on from an earlier checkpoint has
    undone what it had done after it."""
    kept: Dict[int, Event] = {}
    for event in events:
        if event["event"] == "begin":
            kept = {step: one for step, one in kept.items() if step <= event["step"]}
        elif event["event"] == "trained":
            kept[event["step"]] = dict(event)
        elif event["event"] == "saved" and event["step"] in kept:
            kept[event["step"]].update({key: value for key, value in event.items() if key not in ("event", "time")})
    return kept


def problems(events: List[Event], delivered: Iterable[str]) -> List[str]:
    """What is wrong with the history: steps that are missing, groups that were trained twice, and groups that were lost."""
    found = []
    history = steps(events)
    missing = sorted(set(range(1, max(history, default=0) + 1)) - set(history))
    if missing:
        found.append(f"steps {missing} are not in the log")
    counts = Counter(group for step in history.values() for group in step["groups"])
    found += [f"group {group} was trained {count} times" for group, count in sorted(counts.items()) if count > 1]
    wanted = set(delivered)
    found += [f"group {group} was never trained" for group in sorted(wanted - set(counts))]
    found += [f"group {group} was trained, and the run never delivered it" for group in sorted(set(counts) - wanted)]
    # What each checkpoint said when it was gone on from.
    for event in events:
        if event["event"] == "begin" and len(event["groups"]) != len(set(event["groups"])):
            found.append(f"the checkpoint of step {event['step']} names a group twice")
    return found
