"""A task generator: sums of two numbers, with more or fewer digits by how a task went."""

from dataclasses import dataclass
from typing import Annotated, Any

from espalier_sdk import Range, Request, Statistics, task_generator

DIGITS_MAX = 9


@dataclass
class Settings:
    """What an experiment can set. The JSON Schema of the settings is derived from this class."""

    digits: Annotated[int, Range(min=1, max=DIGITS_MAX), "Digits of the numbers."] = 2


def sum_task(id: str, digits: int, seed: int, index: int) -> dict[str, Any]:
    """A task, as one line of a task file has it. The same seed and index give the same numbers."""
    x = seed % 2147483647 + index + 1
    numbers = []
    for _ in range(2):
        x = x * 48271 % 2147483647
        numbers.append(x % 10**digits)
    a, b = numbers
    return {
        "id": id,
        "instruction": f"What is {a} + {b}?",
        "data": {"digits": digits},
        "private": {"answer": str(a + b)},
    }


@task_generator
def generate(request: Request, settings: Settings) -> list[dict[str, Any]]:
    return [
        sum_task(f"sum-{request.seed}-{index}", settings.digits, request.seed, index)
        for index in range(request.count)
    ]


@task_generator.adapt
def adapt(task: dict[str, Any], statistics: Statistics) -> list[dict[str, Any]]:
    harder = statistics.accuracy >= 0.5
    digits = task["data"]["digits"] + (1 if harder else -1)
    if not 1 <= digits <= DIGITS_MAX:
        return []  # none: the task stays as it is
    id = f"{task['id']}-{'harder' if harder else 'easier'}"
    return [sum_task(id, digits, len(task["id"].encode()), 0)]
