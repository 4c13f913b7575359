"""A harness that fails as its task says: one mode for each way in which plugins fail."""

import random
import re
import socket
from dataclasses import dataclass
from typing import Annotated

from espalier_sdk import Conversation, Failure, Other, Range, Report, Task, Tools, blobs, harness, log

# Code outside of functions runs once, when the component is built.
COUNTED = sum(1 for _ in range(100_000))


@dataclass
class Settings:
    """What an experiment can set."""

    lines: Annotated[int, Range(min=1), "Lines of a flood."] = 10_000


@dataclass
class Data:
    mode: str


def endless() -> Report:
    while True:
        pass


def backtrack() -> Report:
    found = 0
    for size in range(100):
        found += size
        found += re.match(r"(a+)+$", "a" * size + "b") is not None
        found += size
    return Report.submitted(data=found)


def hoard() -> Report:
    pieces = []
    while True:
        pieces.append(bytearray(b"x" * (1 << 20)))


def descend(depth: int) -> int:
    return descend(depth + 1) + depth


def use_tools() -> Report:
    tools = Tools()

    @tools.add
    def add(a: float, b: float) -> float:
        "Adds two numbers."
        return a + b

    chat = Conversation("policy", tools=tools).user("Use a tool.")
    tools.answer(chat.complete(), chat)
    return Report.submitted(answer=chat.complete().text)


def invalid_handle() -> Report:
    """There are no numbers of handles here: one that was given up is the nearest."""
    chat = Conversation("policy").user("Go.")
    chat.complete()
    chat.discard()
    return Report.submitted(answer=chat.complete().text)


def go_on() -> Report:
    """Goes on after its budget of turns is used up."""
    chat = Conversation("policy").user("Go on.")
    while True:
        try:
            chat.complete()
        except Failure:
            continue


def flood(lines: int) -> Report:
    for _ in range(lines):
        log.info("x" * 1024)
    return Report.submitted()


def network() -> Report:
    with socket.create_connection(("127.0.0.1", 80), timeout=1):
        return Report.submitted()


@harness
def run(task: Task, settings: Settings) -> Report:
    mode = task.data_as(Data).mode
    match mode:
        case "loop":
            return endless()
        case "pattern":
            return backtrack()
        case "memory":
            return hoard()
        case "stack":
            return Report.submitted(data=descend(1))
        case "panic":
            raise ValueError("an exception on purpose")
        case "wrong-json":
            return Report.submitted(data={"seen": {1}})
        case "unknown-tool":
            return use_tools()
        case "invalid-handle":
            return invalid_handle()
        case "foreign-blob":
            return Report.submitted(data=blobs.stat("of-another-rollout").length)
        case "call-after-end":
            return go_on()
        case "random":
            return Report.submitted(data={"random": random.random(), "order": list({"a", "b", "c", "d"})})
        case "log-flood":
            return flood(settings.lines)
        case "error":
            raise Other("no-plan", "a failure on purpose")
        case "oversized":
            return Report.submitted(answer="x" * (20 << 20))
        case "network":
            return network()
        case _:
            return Report.submitted(data={"mode": mode, "counted": COUNTED})
