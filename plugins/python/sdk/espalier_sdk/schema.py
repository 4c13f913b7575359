"""JSON Schema of Python types, and values of these types from JSON.

Known are ``str``, ``int``, ``float``, ``bool``, ``None``, ``Any``, ``list``, ``tuple[T, ...]``, ``dict[str, T]``, unions,
``Literal``, enums, dataclasses and ``TypedDict``. ``Annotated`` adds a description and bounds::

    @dataclass
    class Settings:
        system: Annotated[str, "System message."] = "Answer briefly."
        votes: Annotated[int, Range(1, 9), "Answers to ask for."] = 3
"""

import dataclasses
import enum
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union

T = TypeVar("T")

#: As it was before an author's file may have replaced it.
_to_text = json.dumps


@dataclasses.dataclass(frozen=True)
class Range:
    """Bounds of a number, both included."""

    min: float | None = None
    max: float | None = None


@dataclasses.dataclass(frozen=True)
class Length:
    """Bounds of the length of a text or a list."""

    min: int | None = None
    max: int | None = None


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Regular expression that a text has to contain a match of."""

    regex: str


class DecodeError(ValueError):
    """JSON that does not fit a type; the text names the field and what was expected."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"`{path}`: {problem}" if path else problem)


class SchemaError(TypeError):
    """A type that has no JSON Schema."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One key of an object: a field of a dataclass, or a parameter of a function."""

    name: str
    hint: Any
    required: bool
    default: Any = None
    description: str = ""


def schema_of(hint: Any) -> dict[str, Any]:
    """JSON Schema of a type."""
    hint, notes = _unwrapped(hint)
    schema = _plain_schema(hint)
    for note in notes:
        schema.update(_note_schema(note, hint))
    return schema


def object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """JSON Schema of an object of these keys and no others."""
    properties = {}
    for field in fields:
        try:
            schema = schema_of(field.hint)
        except SchemaError as error:
            raise SchemaError(f"{field.name}: {error}") from None
        if field.description and "description" not in schema:
            schema["description"] = field.description
        if not field.required:
            schema["default"] = encode(field.default, field.name)
        properties[field.name] = schema
    required = [field.name for field in fields if field.required]
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def fields_of(kind: type) -> list[Field]:
    """The fields of a dataclass or the keys of a ``TypedDict``."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        required_keys = kind.__required_keys__  # type: ignore[attr-defined]
        return [Field(name, _bare(hint), name in required_keys) for name, hint in hints.items()]
    fields = []
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        required = default is dataclasses.MISSING
        fields.append(Field(field.name, hints[field.name], required, None if required else default))
    return fields


def parameters_of(function: Callable[..., Any], descriptions: Mapping[str, str]) -> list[Field]:
    """The parameters of a function. Errors: ``SchemaError`` for one without an annotation."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise SchemaError(f"parameter `{parameter}`: expected one that is passed by name")
        if name not in hints:
            raise SchemaError(f"parameter `{name}` has no annotation: expected one such as `{name}: str`")
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        fields.append(Field(name, hints[name], required, default, descriptions.get(name, "")))
    return fields


def decode(hint: type[T], value: Any, path: str = "", *, strict: bool = True) -> T:
    """A value of this type from JSON. With ``strict``, unknown keys of objects are errors. Errors: ``DecodeError``."""
    decoded: T = _decode(hint, value, path, strict)
    return decoded


def decode_fields(fields: Sequence[Field], value: Any, path: str = "", *, strict: bool = True) -> dict[str, Any]:
    """The keys of an object that are there, decoded. Errors: ``DecodeError``."""
    if not isinstance(value, Mapping):
        raise DecodeError(path, f"expected an object, got {shown(value)}")
    known = {field.name for field in fields}
    for key in value:
        if strict and key not in known:
            names = ", ".join(f"`{name}`" for name in sorted(known)) or "no key"
            raise DecodeError(path, f"unknown key `{key}`; expected {names}")
    decoded = {}
    for field in fields:
        if field.name in value:
            decoded[field.name] = _decode(field.hint, value[field.name], _below(path, field.name), strict)
        elif field.required:
            raise DecodeError(path, f"`{field.name}` is missing")
    return decoded


def encode(value: Any, path: str = "") -> Any:
    """A value as JSON has it. Errors: ``TypeError``, with the place of what cannot be JSON."""
    if isinstance(value, enum.Enum):
        return encode(value.value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not is_utf8(value):
            raise TypeError(f"{_at(path)}{_cut(repr(value))} cannot be JSON: expected text without lone surrogates")
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{_at(path)}{value} cannot be JSON: expected a finite number")
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: encode(getattr(value, field.name), _below(path, field.name)) for field in fields}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not is_utf8(key):
                raise TypeError(f"{_at(path)}the key {key!r} ({type(key).__name__}) cannot be JSON: expected a str")
        return {key: encode(entry, _below(path, key)) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    expected = "expected None, bool, int, float, str, list, dict or a dataclass"
    raise TypeError(f"{_at(path)}{shown_value(value)} cannot be JSON: {expected}")


def to_json(value: Any, path: str = "") -> str:
    """A value as JSON text. Errors: ``TypeError``, with the place of what cannot be JSON."""
    try:
        return _to_text(encode(value, path), ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise TypeError(f"{_at(path)}a value that contains itself, or is nested too deeply, cannot be JSON") from None
    except ValueError as error:
        # An integer of thousands of digits.
        raise TypeError(f"{_at(path)}cannot be JSON: {error}") from None


def is_utf8(text: str) -> bool:
    """Whether a text is one for other programs too: Python's may have lone surrogates."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def shown(value: Any) -> str:
    """A JSON value for an error: short."""
    try:
        return _cut(_to_text(value, ensure_ascii=False))
    except (TypeError, ValueError):
        return _cut(repr(value))


def shown_value(value: Any) -> str:
    """Any value for an error: short, with its type."""
    if value is None:
        return "None"
    if inspect.iscoroutine(value):
        return "a coroutine (plugins are synchronous: remove `async`)"
    try:
        text = _cut(repr(value))
    except Exception as error:  # noqa: BLE001, the author's own may raise anything
        text = f"a value whose `__repr__` raises {type(error).__name__}"
    return f"{text} ({type(value).__name__})"


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f"{path}: " if path else ""


def _bare(hint: Any) -> Any:
    """A hint without ``Required`` and ``NotRequired``."""
    if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        return typing.get_args(hint)[0]
    return hint


def _unwrapped(hint: Any) -> tuple[Any, list[Any]]:
    """A type and what ``Annotated`` says of it."""
    if typing.get_origin(hint) is Annotated:
        inner, *notes = typing.get_args(hint)
        inner, earlier = _unwrapped(inner)
        return inner, [*earlier, *notes]
    return hint, []


def _members(hint: Any) -> list[Any] | None:
    """The types of a union."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return list(typing.get_args(hint))
    return None


_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _plain_schema(hint: Any) -> dict[str, Any]:
    if hint is Any or hint is object:
        return {}
    if hint is None:
        return {"type": "null"}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    members = _members(hint)
    if members is not None:
        return _union_schema(members)
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (list, Sequence):
        return {"type": "array", **({"items": schema_of(arguments[0])} if arguments else {})}
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin in (dict, Mapping):
        if arguments and arguments[0] is not str:
            raise SchemaError(f"{_named(hint)}: expected keys of type str")
        return {"type": "object", **({"additionalProperties": schema_of(arguments[1])} if arguments else {})}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or typing.is_typeddict(hint)):
        schema = object_schema(fields_of(hint))
        description = _doc_of(hint)
        return {**schema, "description": description} if description else schema
    raise SchemaError(f"{_named(hint)} has no JSON Schema: expected str, int, float, bool, list, dict, Literal or a dataclass")


def _union_schema(members: list[Any]) -> dict[str, Any]:
    schemas = [schema_of(member) for member in members]
    if all(set(schema) == {"type"} for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    optional = len(schemas) == 2 and {"type": "null"} in schemas
    if optional:
        other = next(schema for schema in schemas if schema != {"type": "null"})
        if isinstance(other.get("type"), str):
            return {**other, "type": [other["type"], "null"]}
        if "enum" in other:
            return {**other, "enum": [*other["enum"], None]}
    return {"anyOf": schemas}


def _note_schema(note: Any, hint: Any) -> dict[str, Any]:
    if isinstance(note, str):
        return {"description": note}
    lengths = ("minLength", "maxLength") if str in (_members(hint) or [hint]) else ("minItems", "maxItems")
    bounds: dict[str, Any] = {}
    if isinstance(note, Range):
        bounds = {"minimum": note.min, "maximum": note.max}
    elif isinstance(note, Length):
        bounds = dict(zip(lengths, (note.min, note.max), strict=True))
    elif isinstance(note, Pattern):
        bounds = {"pattern": note.regex}
    return {key: bound for key, bound in bounds.items() if bound is not None}


def _doc_of(kind: type) -> str:
    """The documentation of a class, unless `dataclass` made it."""
    doc = inspect.cleandoc(kind.__doc__ or "")
    return "" if doc.startswith(f"{kind.__name__}(") or kind.__doc__ == dict.__doc__ else doc


def _named(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _expected(hint: Any) -> str:
    """What a type takes, in words."""
    hint, _ = _unwrapped(hint)
    words = {str: "a string", int: "an integer", float: "a number", bool: "true or false", None: "null", type(None): "null"}
    if hint in words:
        return words[hint]
    members = _members(hint)
    if members is not None:
        *first, last = [_expected(member) for member in members]
        return f"{', '.join(first)} or {last}"
    origin = typing.get_origin(hint) or hint
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        return "one of " + ", ".join(shown(value) for value in _plain_schema(hint)["enum"])
    if origin in (list, tuple, Sequence):
        return "a list"
    return "an object"


def _decode(hint: Any, value: Any, path: str, strict: bool) -> Any:
    hint, notes = _unwrapped(hint)
    decoded = _decode_plain(hint, value, path, strict)
    for note in notes:
        _check(note, decoded, path)
    return decoded


def _decode_plain(hint: Any, value: Any, path: str, strict: bool) -> Any:
    wrong = DecodeError(path, f"expected {_expected(hint)}, got {shown(value)}")
    if hint is Any or hint is object:
        return value
    if hint in _SCALARS or hint is None:
        return _decode_scalar(hint, value, wrong)
    members = _members(hint)
    if members is not None:
        return _decode_union(members, value, path, strict, wrong)
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Literal:
        for argument in arguments:
            if value == argument and isinstance(value, bool) == isinstance(argument, bool):
                return argument
        raise wrong
    if origin in (list, tuple, Sequence):
        if not isinstance(value, list):
            raise wrong
        inner = arguments[0] if arguments else Any
        entries = [_decode(inner, entry, f"{path}[{index}]", strict) for index, entry in enumerate(value)]
        return tuple(entries) if origin is tuple else entries
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise wrong
        inner = arguments[1] if arguments else Any
        return {key: _decode(inner, entry, _below(path, key), strict) for key, entry in value.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise wrong from None
    decoded = decode_fields(fields_of(hint), value, path, strict=strict)
    return decoded if typing.is_typeddict(hint) else hint(**decoded)


def _decode_scalar(hint: Any, value: Any, wrong: DecodeError) -> Any:
    if hint is None or hint is type(None):
        fits = value is None
    elif hint is bool or hint is str:
        fits = isinstance(value, hint)
    else:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if fits and hint is int and isinstance(value, float):
        fits = value.is_integer()
    if not fits:
        raise wrong
    return hint(value) if hint in (int, float) else value


def _decode_union(members: list[Any], value: Any, path: str, strict: bool, wrong: DecodeError) -> Any:
    others = [member for member in members if member is not type(None)]
    if value is None and len(others) < len(members):
        return None
    if len(others) == 1:
        return _decode(others[0], value, path, strict)
    for member in others:
        try:
            return _decode(member, value, path, strict)
        except DecodeError:
            continue
    raise wrong


def _check(note: Any, value: Any, path: str) -> None:
    if value is None:
        return
    if isinstance(note, Range):
        if note.min is not None and value < note.min:
            raise DecodeError(path, f"expected at least {note.min}, got {shown(value)}")
        if note.max is not None and value > note.max:
            raise DecodeError(path, f"expected at most {note.max}, got {shown(value)}")
    elif isinstance(note, Length):
        if note.min is not None and len(value) < note.min:
            raise DecodeError(path, f"expected a length of at least {note.min}, got {len(value)}")
        if note.max is not None and len(value) > note.max:
            raise DecodeError(path, f"expected a length of at most {note.max}, got {len(value)}")
    elif isinstance(note, Pattern) and not re.search(note.regex, value):
        raise DecodeError(path, f"expected a match of {note.regex!r}, got {shown(value)}")
