"""A reward: 1 for the expected answer, 0 for any other."""

from dataclasses import dataclass
from typing import Annotated

from espalier_sdk import Rollout, Score, reward


@dataclass
class Settings:
    """What an experiment can set. The JSON Schema of the settings is derived from this class."""

    case_sensitive: Annotated[bool, "Whether upper and lower case differ."] = False


@dataclass
class Expected:
    """The `private` part of a task, which the agent does not see."""

    answer: str


@reward
def score(rollout: Rollout, settings: Settings) -> list[Score]:
    # A task without it is a failure: the rollout stays unscored, which is not 0.
    expected = rollout.task.private_as(Expected).answer

    def plain(text: str) -> str:
        return text.strip() if settings.case_sensitive else text.strip().lower()

    if rollout.answer is None:
        value, reason = 0, "no answer"
    else:
        value = int(plain(rollout.answer) == plain(expected))
        reason = f'expected "{expected}", got "{rollout.answer}"'
    return [
        Score(value, reason=reason),
        # Scores of other names are recorded; an experiment may weight them.
        Score(len(rollout.turns), name="turns"),
    ]
