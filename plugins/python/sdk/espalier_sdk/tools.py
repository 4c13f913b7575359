"""Tools that a model may call, declared from functions, their annotations and their documentation."""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import wit
from .schema import DecodeError, Field, SchemaError, decode_fields, object_schema, parameters_of, to_json

if TYPE_CHECKING:
    from .conversation import Answer, Conversation

Function = TypeVar("Function", bound=Callable[..., Any])


class ToolError(Exception):
    """Raised by a tool, its text is what the model is told. Any other error of a tool is one of the plugin."""


@dataclass(frozen=True)
class Tool:
    """One tool, as the model sees it."""

    name: str
    description: str
    #: JSON Schema of the arguments.
    parameters: dict[str, Any]
    function: Callable[..., Any]
    fields: Sequence[Field]


@dataclass(frozen=True)
class GivenTool:
    """A tool that the engine describes and carries out."""

    name: str
    description: str
    #: JSON Schema of the arguments, as text.
    parameters: str
    #: Takes the arguments as JSON text; what it returns is shown to the model.
    run: Callable[[str], str]


class Tools:
    """The tools of a conversation::

        tools = Tools()

        @tools.add
        def add(a: float, b: Annotated[float, "The second number."]) -> float:
            "Adds two numbers."
            return a + b

        conversation = Conversation(tools=tools)
        answer = conversation.complete()
        tools.answer(answer, conversation)

    What a tool returns is shown to the model: a text as it is, anything else as JSON.
    """

    def __init__(self) -> None:
        self._tools: dict[str, Tool | GivenTool] = {}

    @overload
    def add(self, function: Function, /) -> Function: ...

    @overload
    def add(self, /, *, name: str | None = None, description: str | None = None) -> Callable[[Function], Function]: ...

    def add(self, function: Any = None, /, *, name: str | None = None, description: str | None = None) -> Any:
        """Adds a function as a tool. Its description is its documentation; a line `a: The first number.` below `Args:` describes a
        parameter. Errors: ``SchemaError`` for a parameter without an annotation."""
        if function is None:
            return lambda given: self._add(given, name, description)
        return self._add(function, name, description)

    def add_given(self, tool: GivenTool) -> None:
        """Adds a tool that the engine describes, such as one of a browser."""
        self._keep(tool)

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Any:
        return iter(self._tools.values())

    def call(self, name: str, arguments: str) -> str:
        """Carries out one call, with arguments as JSON text. Errors: ``ToolError`` with what the model is to be told, also for an
        unknown tool and for arguments that do not fit."""
        tool = self._tools.get(name)
        if tool is None:
            there = ", ".join(self._tools) or "none"
            raise ToolError(f"unknown tool `{name}`; there is: {there}")
        if isinstance(tool, GivenTool):
            return tool.run(arguments or "{}")
        try:
            values = decode_fields(tool.fields, json.loads(arguments or "{}"))
        except json.JSONDecodeError as error:
            raise ToolError(f"invalid arguments: expected JSON: {error}") from None
        except DecodeError as error:
            raise ToolError(f"invalid arguments: {error}") from None
        made = tool.function(**values)
        return made if isinstance(made, str) else to_json(made, f"`{name}` returned")

    def answer(self, answer: "Answer", conversation: "Conversation") -> int:
        """Carries out the calls of an answer and adds their results to the conversation. Returns how many there were."""
        for call in answer.tool_calls:
            try:
                conversation.tool_result(call, self.call(call.name, call.arguments))
            except ToolError as error:
                conversation.tool_result(call, str(error), is_error=True)
        return len(answer.tool_calls)

    def declared(self) -> list[Any]:
        """The tools as the engine takes them."""
        return [wit.conversations.Tool(tool.name, tool.description, _schema(tool)) for tool in self]

    def _add(self, function: Function, name: str | None, description: str | None) -> Function:
        name = name or function.__name__
        text, parameters = described(inspect.getdoc(function) or "")
        try:
            fields = parameters_of(function, parameters)
            schema = object_schema(fields)
        except SchemaError as error:
            raise SchemaError(f"tool `{name}`: {error}") from None
        self._keep(Tool(name, description or text, schema, function, fields))
        return function

    def _keep(self, tool: Tool | GivenTool) -> None:
        if tool.name in self._tools:
            raise SchemaError(f"tool `{tool.name}`: there is one of this name already")
        self._tools[tool.name] = tool


def _schema(tool: Tool | GivenTool) -> str:
    return tool.parameters if isinstance(tool, GivenTool) else to_json(tool.parameters)


def described(doc: str) -> tuple[str, dict[str, str]]:
    """The description in a function's documentation, and those of its parameters below `Args:`."""
    text, found, below = doc, {}, ""
    match = re.search(r"^(?:Args|Arguments|Parameters):[ ]*\n", doc, re.MULTILINE)
    if match:
        text, below = doc[: match.start()], doc[match.end() :]
    last = ""
    for line in below.splitlines():
        if line and not line.startswith(" "):
            break
        entry = re.match(r"\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
        if entry:
            last = entry[1]
            found[last] = entry[2].strip()
        elif last and line.strip():
            found[last] = f"{found[last]} {line.strip()}".strip()
    return re.split(r"^(?:Returns|Raises):", text, maxsplit=1, flags=re.MULTILINE)[0].strip(), found
