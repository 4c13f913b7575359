"""What an experiment can say about the dialogue; the host checks it and fills in the defaults."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from espalier_sdk import Range


@dataclass
class Settings:
    model: Annotated[str, "Name of the model in the experiment."] = "policy"
    system: Annotated[str | None, "System message; default: none."] = None
    prompt: Annotated[str, "Text before the examples."] = (
        "You act in a text world, one action at a time. Think first, then end your answer with one line of the form `Action: <action>`."
    )
    examples: Annotated[list[str], "Worked examples, in order."] = field(default_factory=list)
    opening: Annotated[str, "First message, with `{prompt}`, `{examples}`, `{instruction}` and `{observation}`."] = (
        "{prompt}\n\n{examples}\n\n{instruction}\n\n{observation}"
    )
    reply: Annotated[str, "Message after an action, with `{observation}`."] = "{observation}"
    form: Annotated[
        Literal["action", "prompt", "line"],
        "The form of an action in an answer: after `Action:`, after `>`, or as its first line.",
    ] = "action"
    format_error: Annotated[str, "Observation for an answer without an action."] = (
        "There was no action in your answer. End it with one line of the form `Action: <action>`."
    )
    format_errors_max: Annotated[int, Range(1, 1000), "Number of consecutive answers without an action that end the rollout."] = 3
    max_turns: Annotated[int, Range(1, 10000), "Number of answers that end the rollout."] = 20
    give_up: Annotated[str | None, "Action with which the model gives up; default: none."] = None
    stop: Annotated[list[str], "Stop strings that end an answer; empty: those of the experiment."] = field(default_factory=list)
    max_tokens: Annotated[int | None, Range(min=1), "Maximum tokens of one answer; default: that of the experiment."] = None
    temperature: Annotated[float | None, Range(0, 100), "Temperature of the answers; default: that of the experiment."] = None
