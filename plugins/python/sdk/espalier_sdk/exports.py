"""What makes a plugin of a function or a class: one decorator for each kind, and the classes that componentize-py exports."""

import inspect
import json
import os
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Protocol, TypeVar

from . import convert, source, watch, wit
from .failures import Failure, Invalid, to_wit
from .schema import DecodeError, SchemaError, decode, schema_of
from .values import Judgement, Observation, Report, Request, Rollout, Score, Statistics, StepResult, Task

Scores = Score | Sequence[Score] | float


class World(Protocol):
    """What an environment has, beside the optional `actions` and `close`."""

    def reset(self) -> Observation | str: ...

    def step(self, action: str) -> StepResult: ...


Harnessing = TypeVar("Harnessing", bound=Callable[[Task], Report] | Callable[[Task, Any], Report])
Rewarding = TypeVar("Rewarding", bound=Callable[[Rollout], Scores] | Callable[[Rollout, Any], Scores])
GroupRewarding = TypeVar(
    "GroupRewarding",
    bound=Callable[[list[Rollout]], Sequence[Scores]] | Callable[[list[Rollout], Any], Sequence[Scores]],
)
Judging = TypeVar("Judging", bound=Callable[[Rollout], Judgement] | Callable[[Rollout, Any], Judgement])
Generating = TypeVar("Generating", bound=Callable[[Request], Sequence[Any]] | Callable[[Request, Any], Sequence[Any]])
Adapting = TypeVar(
    "Adapting",
    bound=Callable[[Any, Statistics], Sequence[Any]] | Callable[[Any, Statistics, Any], Sequence[Any]],
)
Worlds = TypeVar("Worlds", bound=type[World])


@dataclass
class Plugin:
    """What a decorator was given."""

    kind: str
    #: By the name of the decorator: the function or class.
    given: Callable[..., Any]
    settings: type | None
    adapt: Callable[..., Any] | None = None
    #: JSON Schema of the settings.
    schema: str = ""


class DeclarationError(TypeError):
    """A function or class that is not what its decorator needs."""


registered: Plugin | None = None


def register(kind: str, given: Callable[..., Any], parameters: Sequence[str]) -> None:
    """Makes `given` the plugin. Its parameters are these, and the settings behind them if it wants them."""
    global registered
    decorator = kind.replace("-", "_")
    if registered is not None:
        raise DeclarationError(f"@{decorator}: there is @{registered.kind.replace('-', '_')} already; a file is one plugin")
    settings = settings_type(given, parameters)
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    try:
        schema = schema_of(settings) if settings else schema
    except (SchemaError, TypeError) as error:
        raise DeclarationError(f"{settings.__name__ if settings else ''}: {error}") from None
    registered = Plugin(kind, given, settings, schema=json.dumps(schema, ensure_ascii=False))


def settings_type(given: Callable[..., Any], parameters: Sequence[str]) -> type | None:
    """The type of the parameter behind `parameters`, if there is one. Errors: ``DeclarationError``."""
    name = given.__name__
    wanted = f"{name}({', '.join(parameters)}) or {name}({', '.join([*parameters, 'settings: Settings'])})"
    there = list(inspect.signature(given).parameters.values())
    shown = ", ".join(map(str, there))
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.KEYWORD_ONLY) for one in there):
        raise DeclarationError(f"expected {wanted}, got {name}({shown})")
    if len(there) == len(parameters) or (isinstance(given, type) and not there):
        return None
    if len(there) != len(parameters) + 1:
        raise DeclarationError(f"expected {wanted}, got {name}({shown})")
    function = given.__init__ if isinstance(given, type) else given  # type: ignore[misc]
    hint = typing.get_type_hints(function).get(there[-1].name)
    if not isinstance(hint, type) or not is_dataclass(hint):
        raise DeclarationError(f"parameter `{there[-1].name}` of {name}: expected the annotation of a dataclass, got {hint}")
    return hint


def harness(run: Harnessing) -> Harnessing:
    """A harness: ``run(task, settings) -> Report`` drives the turns of a rollout."""
    register("harness", run, ["task"])
    return run


def environment(world: Worlds) -> Worlds:
    """An environment: a class with ``__init__(task, settings)``, ``reset()``, ``step(action)`` and, if it likes, ``actions()`` and
    ``close()``. Each episode has an object of its own."""
    for method in ("reset", "step"):
        if not callable(getattr(world, method, None)):
            raise DeclarationError(f"@environment: {world.__name__} has no method `{method}`")
    register("environment", world, ["task"])
    return world


def reward(score: Rewarding) -> Rewarding:
    """A reward: ``score(rollout, settings) -> Score | list[Score] | float``."""
    register("reward", score, ["rollout"])
    return score


def group_reward(score: GroupRewarding) -> GroupRewarding:
    """A group reward: ``score(rollouts, settings)`` gives a score, or scores, for each rollout, in their order."""
    register("group-reward", score, ["rollouts"])
    return score


def judge(evaluate: Judging) -> Judging:
    """A judge: ``evaluate(rollout, settings) -> Judgement``."""
    register("judge", evaluate, ["rollout"])
    return evaluate


class _TaskGenerator:
    """A task generator: ``@task_generator`` marks ``generate(request, settings)``, ``@task_generator.adapt`` marks
    ``adapt(task, statistics, settings)``. Tasks are dicts, as a line of a task file has them."""

    def __call__(self, generate: Generating) -> Generating:
        register("task-generator", generate, ["request"])
        return generate

    def adapt(self, adapt: Adapting) -> Adapting:
        """Marks the function that makes variants of a task, given how it went."""
        if registered is None or registered.kind != "task-generator":
            raise DeclarationError("@task_generator.adapt: expected it below the function with @task_generator")
        settings = settings_type(adapt, ["task", "statistics"])
        if settings not in (None, registered.settings):
            raise DeclarationError(f"@task_generator.adapt: expected the settings of @task_generator, got {settings}")
        registered.adapt = adapt
        return adapt


task_generator = _TaskGenerator()


# --- the exports


def takes_task(world: Callable[..., Any]) -> bool:
    """Whether an environment's class has an `__init__` with parameters."""
    return bool(inspect.signature(world).parameters)


def _plugin() -> Plugin:
    if registered is None:
        raise DeclarationError("there is no plugin: no function or class has a decorator of espalier_sdk")
    return registered


def _settings() -> list[Any]:
    """The last argument of the plugin's function, if it wants the settings."""
    kind = _plugin().settings
    if kind is None:
        return []
    try:
        return [decode(kind, json.loads(wit.call(wit.settings.get)))]
    except DecodeError as error:
        raise Invalid(f"settings: {error}") from None


Made = TypeVar("Made")


def _guarded(function: Callable[..., Any], act: Callable[[], Made]) -> Made:
    """Carries out an export: failures are returned, other errors are told before the trap."""
    watch.called()
    try:
        return act()
    except Failure as failure:
        wit.log.write(wit.log.Level.DEBUG, f"failed: {source.message_of(failure)}{source.place_of(failure)}", None)
        raise wit.Err(to_wit(failure, wit.types)) from None
    except BaseException as error:
        wit.log.write(wit.log.Level.ERROR, source.error_text(error, function), None)
        silence()
        raise


def silence() -> None:
    """Nothing is printed from now on: the interpreter would print the traceback again, with the frames of this package, and its host
    that it failed."""
    sys.stderr = None
    if sys.platform == "wasi":
        os.close(2)


class Configurable:
    def settings_schema(self) -> str:
        return _plugin().schema


class Harness:
    def run(self, task: Any) -> Any:
        run = _plugin().given

        def act() -> Any:
            return convert.report_out(run(convert.task_in(task), *_settings()), f"`{run.__name__}` returned: Report")

        return _guarded(run, act)


class Reward:
    def score_rollout(self, rollout: Any) -> Any:
        score = _plugin().given

        def act() -> Any:
            return convert.scores_out(score(convert.rollout_in(rollout), *_settings()), f"`{score.__name__}` returned: scores")

        return _guarded(score, act)


class GroupReward:
    def score_group(self, rollouts: Any) -> Any:
        score = _plugin().given

        def act() -> Any:
            views = [convert.rollout_in(rollout) for rollout in rollouts]
            path = f"`{score.__name__}` returned: scores"
            return convert.group_scores_out(score(views, *_settings()), path, len(views))

        return _guarded(score, act)


class Judge:
    def judge(self, rollout: Any) -> Any:
        evaluate = _plugin().given

        def act() -> Any:
            judgement = evaluate(convert.rollout_in(rollout), *_settings())
            return convert.judgement_out(judgement, f"`{evaluate.__name__}` returned: Judgement")

        return _guarded(evaluate, act)


class TaskGenerator:
    def generate(self, request: Any) -> Any:
        generate = _plugin().given

        def act() -> Any:
            tasks = generate(convert.request_in(request), *_settings())
            return convert.tasks_out(tasks, f"`{generate.__name__}` returned: tasks")

        return _guarded(generate, act)

    def adapt(self, task: str, statistics: Any) -> Any:
        adapt = _plugin().adapt
        if adapt is None:
            return []
        adapting = adapt

        def act() -> Any:
            wants_settings = len(inspect.signature(adapting).parameters) == 3
            settings = _settings() if wants_settings else []
            tasks = adapting(json.loads(task), convert.statistics_in(statistics), *settings)
            return convert.tasks_out(tasks, f"`{adapting.__name__}` returned: tasks")

        return _guarded(adapting, act)


class Provider:
    #: The world of the episode.
    world: Any = None

    def reset(self, task: Any) -> Any:
        kind: Any = _plugin().given

        def act() -> Any:
            arguments = [convert.task_in(task), *_settings()] if takes_task(kind) else []
            Provider.world = kind(*arguments)
            return convert.observation_out(Provider.world.reset(), "`reset` returned: Observation")

        return _guarded(kind.reset, act)

    def step(self, action: str) -> Any:
        return self._act("step", lambda world: convert.step_result_out(world.step(action), "`step` returned: StepResult"))

    def actions(self) -> Any:
        if not hasattr(_plugin().given, "actions"):
            return []
        actions = "`actions` returned: actions"
        return self._act("actions", lambda world: convert.list_out(world.actions(), actions, convert.text_out, "str"))

    def close(self) -> None:
        if Provider.world is not None and hasattr(_plugin().given, "close"):
            self._act("close", lambda world: world.close())
        Provider.world = None

    def _act(self, name: str, act: Callable[[Any], Made]) -> Made:
        def acted() -> Made:
            if Provider.world is None:
                raise Invalid(f"{name} before reset")
            return act(Provider.world)

        return _guarded(getattr(_plugin().given, name), acted)
