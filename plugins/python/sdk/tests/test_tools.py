"""Tools from functions."""

from dataclasses import dataclass
from typing import Annotated

import fake_world
import pytest

from espalier_sdk import Conversation, ToolError, Tools
from espalier_sdk.schema import SchemaError


@dataclass
class Place:
    city: str


def tools_with_add() -> Tools:
    tools = Tools()

    @tools.add
    def add(a: float, b: Annotated[float, "The second."] = 1) -> float:
        """Adds two numbers.

        Args:
            a: The first,
                which is needed.

        Returns:
            Their sum.
        """
        return a + b

    @tools.add(name="where")
    def find(place: Place) -> str:
        if place.city == "":
            raise ToolError("no such city")
        return f"found {place.city}"

    return tools


def test_the_schema_follows_from_the_function() -> None:
    add, where = tools_with_add()
    assert add.description == "Adds two numbers."
    assert add.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "number", "description": "The first, which is needed."},
            "b": {"type": "number", "description": "The second.", "default": 1},
        },
        "additionalProperties": False,
        "required": ["a"],
    }
    assert where.name == "where"
    assert where.parameters["properties"]["place"]["properties"] == {"city": {"type": "string"}}


def test_calls_are_carried_out() -> None:
    tools = tools_with_add()
    assert tools.call("add", '{"a": 2}') == "3.0"
    assert tools.call("where", '{"place": {"city": "Riga"}}') == "found Riga"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("sub", "{}", "unknown tool `sub`; there is: add, where"),
        ("add", "{}", "invalid arguments: `a` is missing"),
        ("add", '{"a": "x"}', 'invalid arguments: `a`: expected a number, got "x"'),
        ("add", '{"a": 1, "c": 1}', "invalid arguments: unknown key `c`; expected `a`, `b`"),
        ("add", "{", "invalid arguments: expected JSON"),
        ("where", '{"place": {"city": ""}}', "no such city"),
    ],
)
def test_what_a_model_calls_wrongly_is_told_to_the_model(name: str, arguments: str, told: str) -> None:
    with pytest.raises(ToolError) as error:
        tools_with_add().call(name, arguments)
    assert str(error.value).startswith(told)


def test_results_are_sent_with_the_next_answer(world: fake_world.World) -> None:
    tools = tools_with_add()
    world.answers = [fake_world.completion("", (("1", "add", '{"a": 2}'), ("2", "sub", "{}"))), fake_world.completion("3")]
    conversation = Conversation(tools=tools).user("2 + 1?")
    assert tools.answer(conversation.complete(), conversation) == 2
    assert conversation.complete().text == "3"
    (opened,) = world.opened
    assert [tool.name for tool in opened.tools] == ["add", "where"]
    results = [part.value for message in opened.messages[2:4] for part in message.parts]
    assert [(result.call_id, result.text, result.is_error) for result in results] == [
        ("1", "3.0", False),
        ("2", "unknown tool `sub`; there is: add, where", True),
    ]


def test_a_function_that_cannot_be_a_tool_is_refused() -> None:
    tools = Tools()
    with pytest.raises(SchemaError, match="tool `f`: parameter `a` has no annotation"):

        @tools.add
        def f(a) -> str:  # type: ignore[no-untyped-def]
            return ""

    with pytest.raises(SchemaError, match=r"tool `g`: a: .*set.* has no JSON Schema"):

        @tools.add
        def g(a: set[int]) -> str:
            return ""
