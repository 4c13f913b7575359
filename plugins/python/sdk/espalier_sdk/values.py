"""What plugins are given and give back. JSON is given as Python values: ``task.data["low"]``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from .failures import Invalid
from .schema import DecodeError, decode

T = TypeVar("T")

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Task:
    """What a plugin sees of a task."""

    id: str
    instruction: str
    #: Name of the environment, where the task has one.
    environment: str | None = None
    #: Names of the sandboxes.
    sandboxes: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    #: The task's `data`; None where it has none.
    data: Any = None
    #: The task's `private` part; None where it has none, or is not shown.
    private: Any = None
    extra: Any = None

    def data_as(self, kind: type[T]) -> T:
        """The task's `data` as this type. Keys that the type does not have are left out. Errors: ``Invalid``."""
        return _read(kind, self.data, "task.data")

    def private_as(self, kind: type[T]) -> T:
        """The task's `private` part as this type. Errors: ``Invalid``."""
        return _read(kind, self.private, "task.private")


def _read(kind: type[T], value: Any, name: str) -> T:
    try:
        return decode(kind, {} if value is None else value, strict=False)
    except DecodeError as error:
        raise Invalid(f"{name}: {error}") from None


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool by the model."""

    id: str
    name: str
    #: JSON text, as the model wrote it.
    arguments: str


@dataclass(frozen=True)
class ToolResult:
    """The answer to a call of a tool."""

    call_id: str
    text: str
    is_error: bool = False


@dataclass(frozen=True)
class Image:
    """An image in a message, kept as a blob."""

    blob: str


@dataclass(frozen=True)
class TextBlob:
    """Text over 64 KiB in a finished rollout, kept as a blob."""

    blob: str


@dataclass(frozen=True)
class OtherPart:
    """A newer kind of part."""

    data: Any


Part = str | Image | TextBlob | ToolCall | ToolResult | OtherPart


@dataclass(frozen=True)
class Message:
    """One message. A plain text is a part by itself: ``Message("user", ["Look:", Image(blob)])``."""

    role: Role
    parts: Sequence[Part]
    extra: Any = None

    @property
    def text(self) -> str:
        """Its text, without other parts."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def images(self) -> list[str]:
        """Its images, as blobs."""
        return [part.blob for part in self.parts if isinstance(part, Image)]


@dataclass(frozen=True)
class Observation:
    """What the agent sees."""

    text: str
    #: Blobs, in order.
    images: list[str] = field(default_factory=list)
    extra: Any = None


@dataclass(frozen=True)
class StepResult:
    """What one action led to. A text is an observation without images."""

    observation: Observation | str
    #: Reward of this step alone; None: the world gives none here, which is not 0.
    reward: float | None = None
    #: Whether the episode is over.
    done: bool = False
    #: Facts for rewards and people.
    info: Any = None
    extra: Any = None

    @property
    def text(self) -> str:
        """What the agent sees, as text."""
        return self.observation if isinstance(self.observation, str) else self.observation.text


@dataclass(frozen=True)
class Report:
    """How a rollout ended: ``Report.submitted(answer="4")``."""

    #: `submitted`, `gave-up`, `limit` or a word of the plugin's own, which counts as submitted.
    outcome: str
    #: The final answer, where the task asks for one.
    answer: str | None = None
    #: Facts for rewards and people.
    data: Any = None
    #: For the outcome `limit`: `turns`, `tokens`, `calls`, `wall`, `format` or another word.
    limit_kind: str | None = None
    extra: Any = None

    @classmethod
    def submitted(cls, answer: str | None = None, data: Any = None) -> "Report":
        """Done: score it."""
        return cls("submitted", answer, data)

    @classmethod
    def gave_up(cls, answer: str | None = None, data: Any = None) -> "Report":
        """Cannot be done: score it."""
        return cls("gave-up", answer, data)

    @classmethod
    def limit(cls, kind: str, answer: str | None = None, data: Any = None) -> "Report":
        """Met a limit by the harness's own count: `turns`, `tokens`, `calls`, `wall`, `format` or another word."""
        return cls("limit", answer, data, kind)


@dataclass(frozen=True)
class Turn:
    """One answer of the policy and what followed it."""

    #: From 0.
    index: int
    message: Message
    tool_calls: list[ToolCall] = field(default_factory=list)
    #: Messages behind it, up to the next answer.
    answers: list[Message] = field(default_factory=list)
    extra: Any = None

    @property
    def text(self) -> str:
        """The text of the answer."""
        return self.message.text


@dataclass(frozen=True)
class Step:
    """One step in the environment."""

    #: The policy's last turn when it was taken; 0 before the first.
    turn: int
    action: str
    #: Cut to 64 KiB; then ``observation_blob`` has the whole.
    observation: str
    observation_blob: str | None = None
    reward: float | None = None
    done: bool = False
    info: Any = None
    extra: Any = None


@dataclass(frozen=True)
class Rollout:
    """A finished rollout."""

    id: str
    #: With its private part.
    task: Task
    #: `completed`, `truncated`, `time-exceeded`.
    status: str
    #: `submitted`, `gave-up`, `limit-turns` ...
    stop_reason: str
    report: Report | None = None
    turns: list[Turn] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    #: By name.
    blobs: dict[str, str] = field(default_factory=dict)
    #: For rewards `judges`; for rewards of groups `reward`, `scores` and `judges`.
    extra: Any = None

    @property
    def answer(self) -> str | None:
        """The final answer of the harness's report."""
        return self.report.answer if self.report else None


@dataclass(frozen=True)
class Score:
    """One score. The one named `reward` is what the experiment weights."""

    value: float
    #: Why, for people.
    reason: str = ""
    name: str = "reward"
    #: The turn it is about, if it is about one.
    turn: int | None = None
    extra: Any = None


@dataclass(frozen=True)
class Vote:
    """One evaluation of one turn, or of the outcome."""

    #: None: the evaluation could not be parsed.
    value: float | None
    #: What the judge wrote, for people.
    text: str = ""
    #: ``call`` of the answer it was read from.
    call: str | None = None
    #: The turn it is about; None: the outcome.
    turn: int | None = None
    extra: Any = None


@dataclass(frozen=True)
class Judgement:
    """What a judge gives."""

    scores: list[Score] = field(default_factory=list)
    votes: list[Vote] = field(default_factory=list)
    extra: Any = None


@dataclass(frozen=True)
class Request:
    """What a task generator is asked for."""

    #: How many tasks, from 1. Fewer may come.
    count: int
    #: Follows from the run's seed and the batch.
    seed: int
    #: `{"batch": N, "accepted": N}`: the number of the batch from 0, and the tasks that the run has already.
    extra: Any = None


@dataclass(frozen=True)
class Statistics:
    """How a task went."""

    #: Rollouts of the group with a reward.
    attempts: int
    #: Share of them that solved it, 0 to 1.
    accuracy: float
    #: Mean number of turns.
    turns: float
    #: Endings by stop reason.
    endings: dict[str, int] = field(default_factory=dict)
    #: Summaries of what did not solve it.
    failures: list[str] = field(default_factory=list)
    extra: Any = None
