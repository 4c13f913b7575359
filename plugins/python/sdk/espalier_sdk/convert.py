"""Values of this package from those of the generated bindings and back. What a plugin gives back is checked here, field by field."""

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from . import wit
from .schema import is_utf8, shown_value, to_json
from .values import (
    Image,
    Judgement,
    Message,
    Observation,
    OtherPart,
    Part,
    Report,
    Request,
    Rollout,
    Score,
    Statistics,
    Step,
    StepResult,
    Task,
    TextBlob,
    ToolCall,
    ToolResult,
    Turn,
    Vote,
)

T = TypeVar("T")


class WrongValue(TypeError):
    """A value that is not what it should be: which field, what was expected, what there is."""


def wrong(path: str, expected: str, value: Any) -> WrongValue:
    """The error for a value at this place."""
    return WrongValue(f"{path}: expected {expected}, got {shown_value(value)}")


# --- what comes in


def loaded(text: str | None) -> Any:
    """JSON that the engine gave."""
    return None if text is None else json.loads(text)


def case_of(value: Any) -> str:
    """The case of a variant or enum, as the interfaces write it: `gave-up`."""
    name = value.name if hasattr(value, "name") and isinstance(value.name, str) else type(value).__name__.partition("_")[2]
    if name.isupper():
        return name.lower().replace("_", "-")
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")


def word_of(value: Any) -> str:
    """The same, with the word of the case `other` for itself."""
    case = case_of(value)
    return str(value.value) if case == "other" else case


def task_in(task: Any) -> Task:
    return Task(
        id=task.id,
        instruction=task.instruction,
        environment=task.environment,
        sandboxes=list(task.sandboxes),
        tags=list(task.tags),
        data=loaded(task.data),
        private=loaded(task.private_data),
        extra=loaded(task.extra),
    )


def tool_call_in(call: Any) -> ToolCall:
    return ToolCall(call.id, call.name, call.arguments)


def part_in(part: Any) -> Part:
    case, value = case_of(part), part.value
    if case == "text":
        return str(value)
    if case == "text-blob":
        return TextBlob(value)
    if case == "image":
        return Image(value)
    if case == "tool-call":
        return tool_call_in(value)
    if case == "tool-result":
        return ToolResult(value.call_id, value.text, value.is_error)
    return OtherPart(loaded(value))


def message_in(message: Any) -> Message:
    role: Any = case_of(message.role)
    return Message(role, [part_in(part) for part in message.parts], loaded(message.extra))


def observation_in(seen: Any) -> Observation:
    return Observation(seen.text, list(seen.images), loaded(seen.extra))


def step_result_in(step: Any) -> StepResult:
    return StepResult(observation_in(step.observation), step.reward, step.done, loaded(step.info), loaded(step.extra))


def report_in(report: Any) -> Report:
    kind = case_of(report.outcome)
    outcome = kind if kind == "limit" else word_of(report.outcome)
    limit = word_of(report.outcome.value) if kind == "limit" else None
    return Report(outcome, report.answer, loaded(report.data), limit, loaded(report.extra))


def rollout_in(rollout: Any) -> Rollout:
    def turn(one: Any) -> Turn:
        calls = [tool_call_in(call) for call in one.tool_calls]
        answers = [message_in(message) for message in one.answers]
        return Turn(one.index, message_in(one.message), calls, answers, loaded(one.extra))

    def step(one: Any) -> Step:
        observed = (one.turn, one.action, one.observation, one.observation_blob)
        return Step(*observed, one.reward, one.done, loaded(one.info), loaded(one.extra))

    return Rollout(
        id=rollout.rollout_id,
        task=task_in(rollout.task),
        status=rollout.status,
        stop_reason=rollout.stop_reason,
        report=None if rollout.report is None else report_in(rollout.report),
        turns=[turn(one) for one in rollout.turns],
        steps=[step(one) for one in rollout.steps],
        blobs=dict(rollout.blobs),
        extra=loaded(rollout.extra),
    )


def request_in(request: Any) -> Request:
    return Request(request.count, request.seed, loaded(request.extra))


def statistics_in(one: Any) -> Statistics:
    return Statistics(one.attempts, one.accuracy, one.turns, dict(one.endings), list(one.failures), loaded(one.extra))


# --- what goes out


def text_out(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong(path, "a str", value)
    if not is_utf8(value):
        raise wrong(path, "text without lone surrogates", value)
    return value


def number_out(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(path, "a finite number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise wrong(path, "a finite number", value)
    return number


def count_out(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise wrong(path, "an int from 0 to 4294967295", value)
    return value


def json_out(value: Any, path: str) -> str:
    try:
        return to_json(value, path)
    except TypeError as error:
        raise WrongValue(str(error)) from None


def extra_out(value: Any, path: str) -> str | None:
    return None if value is None else json_out(value, path)


def optional_out(value: Any, path: str, convert: Callable[[Any, str], T]) -> T | None:
    if value is None:
        return None
    try:
        return convert(value, path)
    except WrongValue as error:
        raise WrongValue(str(error).replace(", got", " or None, got", 1)) from None


def list_out(values: Any, path: str, convert: Callable[[Any, str], T], of: str) -> list[T]:
    if isinstance(values, (str, bytes, dict)) or not isinstance(values, Iterable):
        raise wrong(path, f"a list of {of}", values)
    return [convert(value, f"{path}[{index}]") for index, value in enumerate(values)]


def instance_out(value: Any, path: str, kind: type) -> None:
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise wrong(path, f"{article} {kind.__name__}", value)


def part_out(part: Any, path: str) -> Any:
    messages = wit.messages
    if isinstance(part, str):
        return messages.Part_Text(text_out(part, path))
    if isinstance(part, TextBlob):
        return messages.Part_TextBlob(text_out(part.blob, f"{path}.blob"))
    if isinstance(part, Image):
        return messages.Part_Image(text_out(part.blob, f"{path}.blob"))
    if isinstance(part, ToolCall):
        return messages.Part_ToolCall(
            messages.ToolCall(*(text_out(getattr(part, name), f"{path}.{name}") for name in ("id", "name", "arguments")))
        )
    if isinstance(part, ToolResult):
        text = text_out(part.text, f"{path}.text")
        return messages.Part_ToolResult(messages.ToolResult(text_out(part.call_id, f"{path}.call_id"), text, bool(part.is_error)))
    if isinstance(part, OtherPart):
        return messages.Part_Other(json_out(part.data, f"{path}.data"))
    raise wrong(path, "a str, Image, ToolCall or ToolResult", part)


def message_out(message: Any, path: str) -> Any:
    instance_out(message, path, Message)
    if message.role not in ("system", "user", "assistant", "tool"):
        raise wrong(f"{path}.role", '"system", "user", "assistant" or "tool"', message.role)
    parts = list_out(message.parts, f"{path}.parts", part_out, "parts")
    role = wit.messages.Role[message.role.upper()]
    return wit.messages.Message(role=role, parts=parts, extra=extra_out(message.extra, f"{path}.extra"))


def _variant(module: Any, name: str, word: str) -> Any:
    """A case without a value, or the case `other` with the word."""
    case = "".join(piece.capitalize() for piece in word.split("-"))
    made = getattr(module, f"{name}_{case}", None)
    return made() if made and word not in ("other", "limit") else getattr(module, f"{name}_Other")(word)


def report_out(report: Any, path: str) -> Any:
    instance_out(report, path, Report)
    outcome = text_out(report.outcome, f"{path}.outcome")
    if outcome == "limit":
        limit = text_out(report.limit_kind, f"{path}.limit_kind")
        made = wit.reports.Outcome_Limit(_variant(wit.reports, "Limit", limit))
    else:
        made = _variant(wit.reports, "Outcome", outcome)
    return wit.reports.Report(
        outcome=made,
        answer=optional_out(report.answer, f"{path}.answer", text_out),
        data=json_out(report.data, f"{path}.data"),
        extra=extra_out(report.extra, f"{path}.extra"),
    )


def observation_out(seen: Any, path: str) -> Any:
    if isinstance(seen, str):
        seen = Observation(seen)
    if not isinstance(seen, Observation):
        raise wrong(path, "a str or an Observation", seen)
    return wit.environment_types.Observation(
        text=text_out(seen.text, f"{path}.text"),
        images=list_out(seen.images, f"{path}.images", text_out, "blobs"),
        extra=extra_out(seen.extra, f"{path}.extra"),
    )


def step_result_out(step: Any, path: str) -> Any:
    instance_out(step, path, StepResult)
    if not isinstance(step.done, bool):
        raise wrong(f"{path}.done", "a bool", step.done)
    return wit.environment_types.StepResult(
        observation=observation_out(step.observation, f"{path}.observation"),
        reward=optional_out(step.reward, f"{path}.reward", number_out),
        done=step.done,
        info=json_out(step.info, f"{path}.info"),
        extra=extra_out(step.extra, f"{path}.extra"),
    )


def score_out(score: Any, path: str) -> Any:
    if isinstance(score, (int, float)) and not isinstance(score, bool):
        score = Score(score)
    if not isinstance(score, Score):
        raise wrong(path, "a Score or a number", score)
    return wit.scores.Score(
        name=text_out(score.name, f"{path}.name"),
        value=number_out(score.value, f"{path}.value"),
        turn=optional_out(score.turn, f"{path}.turn", count_out),
        reason=text_out(score.reason, f"{path}.reason"),
        extra=extra_out(score.extra, f"{path}.extra"),
    )


def scores_out(scores: Any, path: str) -> list[Any]:
    """Scores; one score or number stands for itself."""
    if isinstance(scores, Score) or (isinstance(scores, (int, float)) and not isinstance(scores, bool)):
        return [score_out(scores, path)]
    return list_out(scores, path, score_out, "Score")


def group_scores_out(groups: Any, path: str, count: int) -> list[list[Any]]:
    made = list_out(groups, path, scores_out, "scores for each rollout")
    if len(made) != count:
        raise WrongValue(f"{path}: expected scores for {count} rollouts, got {len(made)}")
    return made


def vote_out(vote: Any, path: str) -> Any:
    instance_out(vote, path, Vote)
    return wit.judge.Vote(
        turn=optional_out(vote.turn, f"{path}.turn", count_out),
        value=optional_out(vote.value, f"{path}.value", number_out),
        text=text_out(vote.text, f"{path}.text"),
        call=optional_out(vote.call, f"{path}.call", text_out),
        extra=extra_out(vote.extra, f"{path}.extra"),
    )


def judgement_out(judgement: Any, path: str) -> Any:
    instance_out(judgement, path, Judgement)
    return wit.judge.Judgement(
        scores=scores_out(judgement.scores, f"{path}.scores"),
        votes=list_out(judgement.votes, f"{path}.votes", vote_out, "Vote"),
        extra=extra_out(judgement.extra, f"{path}.extra"),
    )


def tasks_out(tasks: Any, path: str) -> list[str]:
    def task(value: Any, path: str) -> str:
        text = json_out(value, path)
        if not text.startswith("{"):
            raise wrong(path, "a dict", value)
        return text

    return list_out(tasks, path, task, "tasks")
