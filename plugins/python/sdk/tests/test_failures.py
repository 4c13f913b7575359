"""Failures as exceptions, tracebacks in the log, random numbers, and the watch on loops."""

import functools
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_world
import pytest

import espalier_sdk as sdk
from espalier_sdk import exports, seeding, source, watch
from espalier_sdk.failures import from_wit, to_wit

TYPES = fake_world.types


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (TYPES.Failure_Budget(TYPES.BudgetKind_SampledTokens()), "budget: sampled-tokens"),
        (TYPES.Failure_Budget(TYPES.BudgetKind_Other("tea")), "budget: tea"),
        (TYPES.Failure_Cancelled(), "cancelled"),
        (TYPES.Failure_Denied("blobs"), "blobs"),
        (TYPES.Failure_Unavailable("gone"), "gone"),
        (TYPES.Failure_Invalid("no"), "no"),
        (TYPES.Failure_Other(TYPES.OtherFailure("patch", "hunk 1")), "patch: hunk 1"),
    ],
)
def test_a_failure_passed_on_is_the_same(world: fake_world.World, value: Any, text: str) -> None:
    assert str(from_wit(value)) == text
    assert to_wit(from_wit(value), TYPES) == value
    world.answers = [fake_world.Err(value)]

    @sdk.harness
    def run(task: sdk.Task) -> sdk.Report:
        sdk.Conversation().user("go").complete()
        return sdk.Report.submitted()

    with pytest.raises(fake_world.Err) as error:
        exports.Harness().run(fake_world.task())
    assert error.value.value == value


def test_a_failure_can_be_handled(world: fake_world.World) -> None:
    world.answers = [fake_world.Err(TYPES.Failure_Budget(TYPES.BudgetKind_Turns()))]
    with pytest.raises(sdk.Budget) as error:
        sdk.Conversation().complete()
    assert error.value.kind == "turns"


def test_an_error_is_told_with_the_authors_lines(world: fake_world.World, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__)
    monkeypatch.setattr(source, "_root", "")
    source.keep(str(here.parent))

    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError as error:
            raise KeyError("no number") from error

    @sdk.harness
    def run(task: sdk.Task) -> sdk.Report:
        return sdk.Report.submitted(data=[parse(text) for text in ["1", "x"]])

    with pytest.raises(KeyError):
        exports.Harness().run(fake_world.task())
    ((level, text, _fields),) = world.logged
    lines = text.splitlines()
    assert level == "ERROR" and sys.stderr is None
    assert lines[0] == "Traceback (most recent call last):"
    assert '    raise KeyError("no number") from error' in lines
    assert lines[-2] == "KeyError: 'no number'"
    assert lines[-1].startswith("caused by ValueError: invalid literal for int() with base 10: 'x' at test_failures.py:")
    assert "exports.py" not in text


def logged(times: int) -> Callable[[Any], Any]:
    def around(function: Any) -> Any:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return [function(*arguments) for _ in range(times)][-1]

        return call

    return around


def test_a_wrong_value_is_placed_at_the_function_below_its_decorators(
    world: fake_world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_root", "")
    source.keep(str(Path(__file__).parent))

    @sdk.harness
    @logged(
        times=2,
    )
    def run(task: sdk.Task) -> sdk.Report:
        return "done"  # type: ignore[return-value]

    with pytest.raises(TypeError):
        exports.Harness().run(fake_world.task())
    ((_level, text, _fields),) = world.logged
    place, line, message = text.splitlines()[1:]
    assert place.startswith('  File "test_failures.py", line ') and line == "    def run(task: sdk.Task) -> sdk.Report:"
    assert message == "WrongValue: `run` returned: Report: expected a Report, got 'done' (str)"


class Broken(Exception):
    def __str__(self) -> str:
        raise KeyError("none")


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (Broken(), "Broken: (its `__str__` raises KeyError)"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
    ],
)
def test_an_error_that_cannot_be_shown_is_told_all_the_same(world: fake_world.World, error: Exception, last: str) -> None:
    @sdk.harness
    def run(task: sdk.Task) -> sdk.Report:
        raise error

    with pytest.raises(type(error)):
        exports.Harness().run(fake_world.task())
    ((_level, text, _fields),) = world.logged
    assert text.splitlines()[-1] == last


def test_random_follows_from_the_engines_seed(world: fake_world.World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: value for name, value in vars(random).items() if getattr(value, "__self__", None) is random._inst}
    for name, value in {**kept, "_inst": random._inst}.items():
        monkeypatch.setattr(random, name, value)
    world.seeds = [b"a" * 16, b"a" * 16, b"b" * 16]
    engine = seeding.install()

    def draw() -> list[Any]:
        return [random.random(), random.randrange(100), random.choice("abc"), random.gauss()]

    assert draw() != draw() and len(world.seeds) == 3
    drawn = []
    for _ in range(3):
        engine.begin()
        drawn.append(draw())
    assert drawn[0] == drawn[1] != drawn[2]
    random.seed(4)
    first = draw()
    random.seed(4)
    assert draw() == first and world.seeds == []


watched = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of Python 3.12")
PATTERN = re.compile("a")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """What the engine is told of this file."""
    told: list[tuple[str, int]] = []
    watch.start(lambda file, line: told.append((file, line)), str, lambda file: file == __file__)
    yield told
    watch._monitoring.free_tool_id(4)
    monkeypatch.setattr(watch, "_watch", None)


@watched
def test_lines_of_a_loop_are_told(told: list[tuple[str, int]]) -> None:
    spin(1_000)
    first = spin.__code__.co_firstlineno
    loop = [line - first for _file, line in told if line >= first]
    # 1, 2, 4 ... 64 times; jumps are told as their lines.
    assert loop.count(1) == 1 and loop.count(2) >= 7 and loop.count(3) >= 7 and len(loop) <= 22
    watch.called()
    spin(1_000)
    assert len([line for _file, line in told if line >= first]) == 2 * len(loop)


@watched
def test_the_line_of_a_regular_expression_is_told_before_it_is_looked_for(told: list[tuple[str, int]]) -> None:
    search(1_000)
    first = search.__code__.co_firstlineno
    lines = [line - first for _file, line in told if line >= first]
    assert lines[-4:] == [2, 4, 2, 4] and lines.count(2) >= 1_000


def spin(rounds: int) -> None:
    done = 0
    while done < rounds:
        done += 1


def search(rounds: int) -> None:
    for _ in range(rounds):
        re.search("a", "b")
        int("1")
        PATTERN.match("b")
        int("2")
