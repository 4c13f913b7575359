"""Conversations with the models of the experiment."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import convert, wit
from .failures import Invalid
from .tools import Tools
from .values import Image, Message, Part, Role, ToolCall, ToolResult


@dataclass(frozen=True)
class Usage:
    """Counters of one conversation."""

    #: Tokens of the context as it stands.
    prompt_tokens: int
    #: Tokens sampled in this conversation.
    sampled_tokens: int
    #: Answers in this conversation.
    turns: int
    #: What context or budget still allows, where known.
    tokens_left: int | None = None
    #: Answers that the rollout's budget still allows.
    turns_left: int | None = None
    extra: Any = None


@dataclass(frozen=True)
class Answer:
    """One answer."""

    #: Its text, calls of tools included as the model wrote them.
    text: str
    #: The calls that were parsed.
    tool_calls: list[ToolCall]
    #: Why a call could not be parsed.
    malformed: str | None
    #: Why it ended: `stop`, `length`, `tool-calls`, `filtered` or a newer word.
    finish: str
    #: Counters after it.
    usage: Usage
    message: Message
    #: Names it in the votes of a judge.
    call: str | None = None
    extra: Any = None


class Branch(NamedTuple):
    """One of several answers, with the conversation that holds it."""

    conversation: "Conversation"
    answer: Answer


class Conversation:
    """One branch of a conversation. Messages are sent with the next answer that is asked for::

        conversation = Conversation()
        conversation.system("Answer briefly.").user("What is 2 + 3?")
        answer = conversation.complete()
        print(answer.text)

    `model` is what the experiment calls it: `policy`; a judge's is `judge`. The other arguments say how answers are asked for; what
    is left out is as the experiment's `sampling` says.
    """

    def __init__(
        self,
        model: str = "policy",
        *,
        tools: Tools | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        temperature: float | None = None,
        tool_choice: str | None = None,
    ) -> None:
        self.model = model
        self.tools = tools
        self.max_tokens = max_tokens
        self.stop = stop
        self.temperature = temperature
        #: `auto`, `none`, `required`, or the name of a tool.
        self.tool_choice = tool_choice
        self._pending: list[Message] = []
        self._open: Any = None

    def system(self, text: str) -> "Conversation":
        """Adds a message of the system."""
        return self._say("system", [text])

    def user(self, text: str, *, images: Iterable[str] = ()) -> "Conversation":
        """Adds a message of the user, with images (blobs) behind its text."""
        return self._say("user", [text, *(Image(blob) for blob in images)])

    def assistant(self, text: str) -> "Conversation":
        """Adds an answer that this plugin writes itself, for examples; it does not train."""
        return self._say("assistant", [text])

    def tool_result(self, call: ToolCall, text: str, *, is_error: bool = False) -> "Conversation":
        """Adds the answer to a call of a tool."""
        return self._say("tool", [ToolResult(call.id, text, is_error)])

    def add(self, *messages: Message) -> "Conversation":
        """Adds any messages."""
        self._pending.extend(messages)
        return self

    def complete(
        self,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        temperature: float | None = None,
        tool_choice: str | None = None,
    ) -> Answer:
        """Samples one answer and adds it; arguments hold for this answer alone. Errors: ``Budget``, ``Unavailable``, ``Cancelled``,
        ``Invalid``; then the conversation is as before."""
        self._send()
        options = self._options(max_tokens, stop, temperature, tool_choice)
        return _answer_in(wit.call(self._open.complete, options))

    def complete_many(
        self,
        n: int,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        temperature: float | None = None,
        tool_choice: str | None = None,
    ) -> list[Branch]:
        """Samples `n` answers at once, 1 to 256, each in a branch of its own; this one stays without an answer."""
        self._send()
        options = self._options(max_tokens, stop, temperature, tool_choice)
        branches = wit.call(self._open.complete_many, convert.count_out(n, "n"), options)
        return [Branch(self._branch(branch.conversation), _answer_in(branch.completion)) for branch in branches]

    def fork(self) -> "Conversation":
        """A second branch with the same past."""
        self._send()
        return self._branch(wit.call(self._open.fork))

    def discard(self) -> None:
        """Gives this branch up: its tokens do not train."""
        if self._open is not None:
            wit.call(self._open.discard)

    def rewrite(self, messages: Sequence[Message]) -> None:
        """Replaces the whole history, for compaction: a new training segment opens, the old one stays."""
        if self._open is None:
            self._pending = list(messages)
            return
        wit.call(self._open.rewrite, _messages_out(messages))
        self._pending = []

    def elide_images(self, keep: int) -> int:
        """Replaces all images but the last `keep` by a fixed text; returns how many."""
        self._send()
        return wit.call(self._open.elide_images, convert.count_out(keep, "keep"))  # type: ignore[no-any-return]

    def set_trainable(self, message: int, trainable: bool) -> None:
        """Says whether the answer at this index of the conversation may train."""
        if self._open is None:
            raise Invalid("this conversation has no answer yet")
        wit.call(self._open.set_trainable, convert.count_out(message, "message"), bool(trainable))

    def usage(self) -> Usage | None:
        """Counters as they stand; None before the first message is sent."""
        return None if self._open is None else _usage_in(wit.call(self._open.usage))

    def _say(self, role: Role, parts: Sequence[Part]) -> "Conversation":
        message = Message(role, parts)
        # A wrong message is an error of the line that adds it.
        convert.message_out(message, role) if wit.is_component() else None
        return self.add(message)

    def _branch(self, opened: Any) -> "Conversation":
        branch = Conversation(
            self.model,
            tools=self.tools,
            max_tokens=self.max_tokens,
            stop=self.stop,
            temperature=self.temperature,
            tool_choice=self.tool_choice,
        )
        branch._open = opened
        return branch

    def _send(self) -> None:
        """Opens the conversation, or appends what is new."""
        messages = _messages_out(self._pending)
        if self._open is None:
            tools = [] if self.tools is None else self.tools.declared()
            self._open = wit.call(wit.conversations.open, convert.text_out(self.model, "model"), messages, tools)
        elif messages:
            wit.call(self._open.append, messages)
        self._pending = []

    def _options(
        self, max_tokens: int | None, stop: Sequence[str] | None, temperature: float | None, tool_choice: str | None
    ) -> Any:
        max_tokens = self.max_tokens if max_tokens is None else max_tokens
        temperature = self.temperature if temperature is None else temperature
        tool_choice = self.tool_choice if tool_choice is None else tool_choice
        return wit.conversations.Options(
            max_tokens=convert.optional_out(max_tokens, "max_tokens", convert.count_out),
            stop=convert.list_out(self.stop if stop is None else stop, "stop", convert.text_out, "str"),
            temperature=convert.optional_out(temperature, "temperature", convert.number_out),
            tool_choice=convert.optional_out(tool_choice, "tool_choice", convert.text_out),
            extra=None,
        )


def _messages_out(messages: Sequence[Message]) -> list[Any]:
    return [convert.message_out(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _usage_in(usage: Any) -> Usage:
    counters = (usage.prompt_tokens, usage.sampled_tokens, usage.turns)
    return Usage(*counters, usage.tokens_left, usage.turns_left, convert.loaded(usage.extra))


def _answer_in(completion: Any) -> Answer:
    message = convert.message_in(completion.message)
    extra = convert.loaded(completion.extra)
    return Answer(
        text=message.text,
        tool_calls=[convert.tool_call_in(call) for call in completion.tool_calls],
        malformed=completion.malformed,
        finish=convert.word_of(completion.finish),
        usage=_usage_in(completion.usage),
        message=message,
        call=extra.get("call") if isinstance(extra, dict) else None,
        extra=extra,
    )
