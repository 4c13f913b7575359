"""An environment: guess a number."""

from dataclasses import dataclass
from typing import Annotated

from espalier_sdk import Range, StepResult, Task, environment


@dataclass
class Settings:
    """What an experiment can set. The JSON Schema of the settings is derived from this class."""

    max_guesses: Annotated[int, Range(min=1), "Number of guesses that end the episode."] = 10


@dataclass
class Bounds:
    """The `data` of a task, which everybody sees."""

    low: int
    high: int


@dataclass
class Secret:
    """The `private` part of a task, which the agent does not see."""

    secret: int


@environment
class GuessTheNumber:
    # Each episode has an object of its own.
    def __init__(self, task: Task, settings: Settings) -> None:
        self.bounds = task.data_as(Bounds)
        self.secret = task.private_as(Secret).secret
        self.max_guesses = settings.max_guesses
        self.guesses = 0

    def reset(self) -> str:
        return f"Guess a number between {self.bounds.low} and {self.bounds.high}."

    def step(self, action: str) -> StepResult:
        self.guesses += 1
        info = {"guesses": self.guesses}
        try:
            guess = int(action)
        except ValueError:
            text = f"`{action}` is not a number."
        else:
            if guess == self.secret:
                return StepResult("Correct.", reward=1, done=True, info=info)
            text = "The number is higher." if guess < self.secret else "The number is lower."
        if self.guesses < self.max_guesses:
            return StepResult(text, info=info)
        return StepResult(f"{text} No guesses left.", reward=0, done=True, info=info)

    def actions(self) -> list[str]:
        return []  # any number: there is no list of them
