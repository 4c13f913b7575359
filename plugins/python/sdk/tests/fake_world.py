"""Stands for the bindings that componentize-py generates: their classes, and imports that keep what they are called with."""

import sys
from dataclasses import dataclass, make_dataclass
from enum import Enum
from types import ModuleType
from typing import Any, Generic, TypeVar

E = TypeVar("E")


@dataclass(frozen=True)
class Err(Exception, Generic[E]):
    value: E


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module
    return module


def _records(**records: str) -> dict[str, type]:
    return {name: make_dataclass(name, fields.split()) for name, fields in records.items()}


def _variant(name: str, plain: str = "", valued: str = "") -> dict[str, type]:
    cases = {f"{name}_{case}": make_dataclass(f"{name}_{case}", []) for case in plain.split()}
    return cases | {f"{name}_{case}": make_dataclass(f"{name}_{case}", ["value"]) for case in valued.split()}


class World:
    """What the fake engine answers and was told."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, str, str | None]] = []
        self.at: list[tuple[str, int]] = []
        self.settings = "{}"
        #: Answers of the model, or errors to raise, in order.
        self.answers: list[Any] = []
        self.opened: list[Any] = []
        self.seeds: list[bytes] = [bytes(range(16))]
        self.browsers: dict[str, Any] = {}
        #: What services answer by path, and what they were asked.
        self.replies: dict[str, tuple[int, str]] = {}
        self.requests: list[tuple[str, str, str, bytes]] = []

    def answer(self, name: str, method: str, path: str, body: bytes) -> Any:
        self.requests.append((name, method, path, body))
        status, text = self.replies[path]
        return services.Response(status, "application/json", text.encode(), None)


class Opened:
    """A conversation of the fake engine."""

    def __init__(self, world: World, model: str, messages: list[Any], tools: list[Any]) -> None:
        self.world = world
        self.model = model
        self.messages = list(messages)
        self.tools = tools
        self.options: list[Any] = []
        self.discarded = False

    def append(self, messages: list[Any]) -> None:
        self.messages.extend(messages)

    def complete(self, options: Any) -> Any:
        self.options.append(options)
        answer = self.world.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.messages.append(answer.message)
        return answer

    def complete_many(self, n: int, options: Any) -> list[Any]:
        branches = []
        for _ in range(n):
            fork = self.fork()
            branches.append(conversations.Branch(conversation=fork, completion=fork.complete(options)))
        return branches

    def fork(self) -> "Opened":
        return Opened(self.world, self.model, self.messages, self.tools)

    def rewrite(self, messages: list[Any]) -> None:
        self.messages = list(messages)

    def discard(self) -> None:
        self.discarded = True


world = World()


def completion(text: str, calls: tuple[tuple[str, str, str], ...] = (), extra: str | None = None) -> Any:
    """An answer of the model."""
    message = messages.Message(messages.Role.ASSISTANT, [messages.Part_Text(text)], None)
    usage = conversations.Usage(10, 5, 1, None, None, None)
    tool_calls = [messages.ToolCall(*call) for call in calls]
    finish = conversations.Finish_ToolCalls() if calls else conversations.Finish_Stop()
    return conversations.Completion(message, tool_calls, None, finish, usage, extra)


def _open(model: str, said: list[Any], tools: list[Any]) -> Opened:
    opened = Opened(world, model, said, tools)
    world.opened.append(opened)
    return opened


_module("componentize_py_types", Err=Err)
_module("wit_world")
_module("wit_world.imports")
_module("wit_world.exports")
types: Any = _module(
    "wit_world.imports.types",
    **_records(OtherFailure="code text", TaskView="id instruction environment sandboxes tags data private_data extra"),
    **_variant("BudgetKind", "Turns Tokens SampledTokens Wall HostCalls BlobBytes", "Other"),
    **_variant("Failure", "Cancelled", "Budget Denied Unavailable Invalid Other"),
)
messages: Any = _module(
    "wit_world.imports.messages",
    Role=Enum("Role", "SYSTEM USER ASSISTANT TOOL", start=0),
    **_records(ToolCall="id name arguments", ToolResult="call_id text is_error", Message="role parts extra"),
    **_variant("Part", "", "Text TextBlob Image ToolCall ToolResult Other"),
)
conversations: Any = _module(
    "wit_world.imports.conversations",
    open=_open,
    **_records(
        Tool="name description parameters",
        Options="max_tokens stop temperature tool_choice extra",
        Usage="prompt_tokens sampled_tokens turns tokens_left turns_left extra",
        Completion="message tool_calls malformed finish usage extra",
        Branch="conversation completion",
    ),
    **_variant("Finish", "Stop Length ToolCalls Filtered", "Other"),
)
reports: Any = _module(
    "wit_world.imports.reports",
    **_records(Report="outcome answer data extra"),
    **_variant("Limit", "Turns Tokens Calls Wall Format", "Other"),
    **_variant("Outcome", "Submitted GaveUp", "Limit Other"),
)
environment_types: Any = _module(
    "wit_world.imports.espalier_environment_types",
    **_records(Observation="text images extra", StepResult="observation reward done info extra"),
)
scores: Any = _module(
    "wit_world.imports.scores",
    **_records(
        Score="name value turn reason extra",
        Turn="index message tool_calls answers extra",
        Step="turn action observation observation_blob reward done info extra",
        RolloutView="rollout_id task status stop_reason report turns steps blobs extra",
    ),
)
judge: Any = _module("wit_world.exports.judge", **_records(Vote="turn value text call extra", Judgement="scores votes extra"))
_module(
    "wit_world.imports.log",
    Level=Enum("Level", "DEBUG INFO WARN ERROR", start=0),
    write=lambda level, text, fields: world.logged.append((level.name, text, fields)),
)
browsers: Any = _module(
    "wit_world.imports.browsers",
    open=lambda name: world.browsers[name],
    Format=Enum("Format", "PNG JPEG WEBP", start=0),
    ScriptWorld=Enum("ScriptWorld", "PAGE ISOLATED", start=0),
    **_records(
        Tool="name description parameters",
        Action="name arguments",
        Area="x y width height",
        Position="x y",
        Element="text role name tag area extra",
        Problem="code text",
        End="response status",
        Navigation="url title status within_document",
        Dialog="kind message answer",
        Tab="index url title is_active extra",
        Settled="cause after_ms pending",
        Step="name outcome element position meanwhile effects settled duration_ms text extra",
        SnapshotOptions="tokens_max changes whole_page extra",
        Snapshot="text tokens left_out extra",
        ScreenshotOptions="format quality scale full_page extra",
        Picture="blob width height extra",
    ),
    **_variant("Outcome", "Done", "Failed Skipped Ended Asked Other"),
    **_variant("Effect", "NothingChanged", "Navigated Blocked TabOpened TabClosed Dialog ConsoleErrors Changed Other"),
)
services: Any = _module(
    "wit_world.imports.services",
    request=lambda name, method, path, body: world.answer(name, method, path, body),
    **_records(Response="status content_type body extra"),
)
_module("wit_world.imports.settings", get=lambda: world.settings)
_module("wit_world.imports.random", bytes=lambda length: world.seeds.pop(0)[:length])
_module("wit_world.imports.diagnostics", at=lambda file, line: world.at.append((file, line)))


def task(data: str = "null", private: str | None = None) -> Any:
    """A task as the engine gives it."""
    return types.TaskView("t", "Do it.", None, [], [], data, private, None)


def rollout(answer: str | None = None, private: str | None = None) -> Any:
    """A finished rollout as the engine gives it."""
    message = messages.Message(messages.Role.ASSISTANT, [messages.Part_Text("Hm. "), messages.Part_Text("4")], None)
    report = reports.Report(reports.Outcome_Limit(reports.Limit_Turns()), answer, '{"turns": 1}', None)
    turns = [scores.Turn(0, message, [messages.ToolCall("c", "add", "{}")], [], None)]
    steps = [scores.Step(0, "go", "gone", None, 0.5, True, "null", None)]
    return scores.RolloutView(
        "r", task(private=private), "completed", "submitted", report, turns, steps, [("log", "b1")], '{"reward": 1}'
    )
