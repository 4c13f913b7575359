"""A judge: a model votes whether an answer meets a rubric."""

import re
from dataclasses import dataclass
from typing import Annotated

from espalier_sdk import Conversation, Judgement, Other, Range, Rollout, Score, Vote, judge

SYSTEM = (
    "You are a strict judge. Think briefly, then end with \\boxed{1} if the rubric is met, else \\boxed{0}."
)


@dataclass
class Settings:
    """What an experiment can set. The JSON Schema of the settings is derived from this class."""

    rubric: Annotated[str, "What an answer has to be."] = "The answer is correct and complete."
    votes: Annotated[int, Range(min=1, max=9), "Number of answers to ask the judge for."] = 3


def verdict_in(text: str) -> float | None:
    """The last verdict in an answer; None: there is none."""
    verdicts = re.findall(r"\\boxed\{([01])\}", text)
    return float(verdicts[-1]) if verdicts else None


@judge
def evaluate(rollout: Rollout, settings: Settings) -> Judgement:
    conversation = Conversation("judge")
    conversation.system(SYSTEM)
    conversation.user(
        f"Rubric: {settings.rubric}\n\nTask: {rollout.task.instruction}\n\nAnswer: {rollout.answer or '(none)'}"
    )
    votes = [
        # `call` names the answer, so that a judge that is trained learns from its vote.
        Vote(verdict_in(answer.text), text=answer.text, call=answer.call)
        for _branch, answer in conversation.complete_many(settings.votes)
    ]
    values = [vote.value for vote in votes if vote.value is not None]
    if not values:
        raise Other("no-verdict", f"none of the {len(votes)} votes could be parsed")
    reason = f"{sum(value == 1 for value in values)} of {len(values)} votes for"
    return Judgement([Score(sum(values) / len(values), reason=reason)], votes)
