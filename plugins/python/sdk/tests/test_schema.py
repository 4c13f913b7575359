"""JSON Schema of types, and values of types from JSON."""

import enum
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from espalier_sdk import DecodeError, Length, Pattern, Range, decode, schema_of
from espalier_sdk.schema import SchemaError, to_json


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """A place."""

    x: float
    y: float = 0.5


@dataclass
class Settings:
    system: Annotated[str, "System message."] = "Hello."
    turns: Annotated[int, Range(min=1, max=9), "Answers."] = 3
    stop: list[str] = field(default_factory=list)
    mode: Literal["a", "b"] = "a"
    limit: Annotated[int | None, Range(min=0)] = None
    start: Point = field(default_factory=lambda: Point(1))
    colour: Colour = Colour.RED


class Options(TypedDict):
    name: str
    size: NotRequired[int]


@dataclass
class Guess:
    low: int
    high: int


def test_settings_have_descriptions_bounds_and_defaults() -> None:
    schema = schema_of(Settings)
    assert schema["additionalProperties"] is False
    assert "required" not in schema and "description" not in schema
    properties = schema["properties"]
    assert properties["system"] == {"type": "string", "description": "System message.", "default": "Hello."}
    assert properties["turns"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "Answers.",
        "default": 3,
    }
    assert properties["stop"] == {"type": "array", "items": {"type": "string"}, "default": []}
    assert properties["mode"] == {"enum": ["a", "b"], "default": "a"}
    assert properties["limit"] == {"type": ["integer", "null"], "minimum": 0, "default": None}
    assert properties["start"]["default"] == {"x": 1, "y": 0.5}
    assert properties["start"]["required"] == ["x"]
    assert properties["start"]["description"] == "A place."
    assert properties["colour"] == {"enum": ["red", "blue"], "default": "red"}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (Any, {}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
        (list, {"type": "array"}),
        (int | str, {"type": ["integer", "string"]}),
        (Literal["a"] | None, {"enum": ["a", None]}),
        (Annotated[str, Length(min=1), Pattern("^a")], {"type": "string", "minLength": 1, "pattern": "^a"}),
        (Annotated[list[int], Length(max=2)], {"type": "array", "items": {"type": "integer"}, "maxItems": 2}),
        (
            Options,
            {
                "type": "object",
                "properties": {"name": {"type": "string"}, "size": {"type": "integer", "default": None}},
                "additionalProperties": False,
                "required": ["name"],
            },
        ),
    ],
)
def test_types_have_schemas(hint: Any, schema: Any) -> None:
    found = schema_of(hint)
    if hint is Options:
        assert found["required"] == ["name"] and found["properties"]["name"] == {"type": "string"}
    else:
        assert found == schema


@pytest.mark.parametrize("hint", [set[int], dict[int, str], complex, object()])
def test_types_without_a_schema_are_named(hint: Any) -> None:
    with pytest.raises(SchemaError):
        schema_of(hint)


def test_values_are_decoded() -> None:
    decoded = decode(Settings, {"turns": 2.0, "start": {"x": 2}, "colour": "blue", "limit": 4})
    assert decoded == Settings(turns=2, start=Point(2.0), colour=Colour.BLUE, limit=4)
    assert isinstance(decoded.turns, int)
    assert decode(Options, {"name": "n"}) == {"name": "n"}
    either: Any = int | str
    assert decode(either, "x") == "x"
    assert decode(Guess, {"low": 1, "high": 2, "more": 3}, strict=False) == Guess(1, 2)


@pytest.mark.parametrize(
    ("hint", "value", "problem"),
    [
        (Guess, {"low": 1}, "`high` is missing"),
        (Guess, {"low": "a", "high": 2}, '`low`: expected an integer, got "a"'),
        (Guess, {"low": True, "high": 2}, "`low`: expected an integer, got true"),
        (Guess, {"low": 1.5, "high": 2}, "`low`: expected an integer, got 1.5"),
        (Guess, {"low": 1, "high": 2, "top": 3}, "unknown key `top`; expected `high`, `low`"),
        (Guess, [], "expected an object, got []"),
        (Settings, {"turns": 0}, "`turns`: expected at least 1, got 0"),
        (Settings, {"stop": ["a", 1]}, "`stop[1]`: expected a string, got 1"),
        (Settings, {"start": {"x": "a"}}, '`start.x`: expected a number, got "a"'),
        (Settings, {"mode": "c"}, '`mode`: expected one of "a", "b", got "c"'),
        (Settings, {"limit": "a"}, '`limit`: expected an integer, got "a"'),
        (int | str, [], "expected an integer or a string, got []"),
    ],
)
def test_what_does_not_fit_is_named(hint: Any, value: Any, problem: str) -> None:
    with pytest.raises(DecodeError) as error:
        decode(hint, value)
    assert str(error.value) == problem


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Unshown:
    def __repr__(self) -> str:
        return str(1 / 0)


def test_values_become_json() -> None:
    assert to_json({"a": (1, 2.5), "b": Point(1), "c": Colour.BLUE, "d": "ä"}) == (
        '{"a": [1, 2.5], "b": {"x": 1, "y": 0.5}, "c": "blue", "d": "ä"}'
    )
    for value, problem in [
        ({"a": {1}}, "data.a: {1} (set) cannot be JSON"),
        ({"a": [math.nan]}, "data.a[0]: nan cannot be JSON: expected a finite number"),
        ({1: 2}, "data: the key 1 (int) cannot be JSON: expected a str"),
        ({"a": "\ud800"}, "data.a: '\\ud800' cannot be JSON: expected text without lone surrogates"),
        ([itself()], "data: a value that contains itself, or is nested too deeply, cannot be JSON"),
        ([10**5000], "data: cannot be JSON: Exceeds the limit"),
        ([Unshown()], "data[0]: a value whose `__repr__` raises ZeroDivisionError (Unshown) cannot be JSON"),
    ]:
        with pytest.raises(TypeError) as error:
            to_json(value, "data")
        assert str(error.value).startswith(problem)
