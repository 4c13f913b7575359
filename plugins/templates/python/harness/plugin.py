"""A harness: lets a model act in a text world, one action in each answer."""

from dataclasses import dataclass
from typing import Annotated

from espalier_sdk import Conversation, Environment, Range, Report, Task, harness

NO_ACTION = "There was no action in your answer. End it with one line `Action: <action>`."


@dataclass
class Settings:
    """What an experiment can set. The JSON Schema of the settings is derived from this class."""

    system: Annotated[str, "System message."] = (
        "You act in a text world. End each answer with one line `Action: <action>`."
    )
    max_turns: Annotated[int, Range(min=1), "Number of answers that end the rollout."] = 10


def action_in(text: str) -> str | None:
    """The action behind the last line that starts with `Action:`."""
    actions = [
        line.removeprefix("Action:").strip() for line in text.splitlines() if line.startswith("Action:")
    ]
    return actions[-1] if actions else None


@harness
def run(task: Task, settings: Settings) -> Report:
    world = Environment.open()
    conversation = Conversation("policy")
    conversation.system(settings.system)
    conversation.user(f"{task.instruction}\n\n{world.reset().text}")

    reward = 0.0
    for turn in range(1, settings.max_turns + 1):
        answer = conversation.complete()
        action = action_in(answer.text)
        if action is None:
            conversation.user(NO_ACTION)
            continue
        result = world.step(action)
        reward += result.reward or 0
        if result.done:
            return Report.submitted(answer=result.text, data={"turns": turn, "reward": reward})
        conversation.user(result.text)
    return Report.limit("turns", data={"turns": settings.max_turns, "reward": reward})
