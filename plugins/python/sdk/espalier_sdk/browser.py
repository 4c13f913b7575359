"""Browsers: tabs of Chromium with tools for agents, descriptions of pages, screenshots.

What a tool could not do is an outcome of its step, not a failure. ``Unavailable`` means that the browser is lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from . import convert, wit
from .tools import GivenTool, Tools
from .values import ToolCall


class Area(NamedTuple):
    """A rectangle in the viewport, in CSS pixels."""

    x: float
    y: float
    width: float
    height: float


class Position(NamedTuple):
    """A position in the viewport, in CSS pixels."""

    x: float
    y: float


@dataclass(frozen=True)
class Element:
    """The element that an action was on, as it was before."""

    #: A short line: `button "Save"`.
    text: str
    #: As assistive technology sees it; empty for none.
    role: str
    #: Accessible name; empty for none.
    name: str
    #: Name of the tag, in lower case.
    tag: str
    area: Area | None = None
    extra: Any = None


@dataclass(frozen=True)
class Tab:
    """A tab."""

    #: From 0.
    index: int
    url: str
    title: str
    is_active: bool
    extra: Any = None


@dataclass(frozen=True)
class Problem:
    """Why an action was not done."""

    #: Stable word for programs: `invalid-arguments`, `stale-reference`, `blocked-url`, `covered`, `timed-out` ...
    code: str
    #: Sentence for the model.
    text: str


@dataclass(frozen=True)
class End:
    """The model ended the episode."""

    #: Its answer.
    response: str
    #: With `terminate`: `success` or `failure`, as the model says.
    status: str | None = None


@dataclass(frozen=True)
class Effect:
    """What an action led to."""

    #: `navigated`, `navigation-failed`, `blocked`, `tab-opened`, `tab-closed`, `dialog`, `downloaded`, `download-failed`,
    #: `console-errors`, `scrolled`, `changed`, `nothing-changed` or a newer word.
    kind: str
    #: What is known of it, by name: ``effect.data["url"]``.
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settled:
    """How the page came to rest after an action."""

    #: `quiet`, `bound`, `navigation`, `dialog`, `closed`.
    cause: str
    after_ms: int
    #: What was still pending, for people.
    pending: list[str]


@dataclass(frozen=True)
class BrowserStep:
    """One action, carried out or not."""

    #: The tool.
    name: str
    #: `done`, `failed`, `skipped`, `ended`, `asked` or a newer word.
    outcome: str
    #: What the model is told.
    text: str
    #: Of `failed`.
    problem: Problem | None = None
    #: Of `skipped`: why.
    skipped: str | None = None
    #: Of `ended`.
    ended: End | None = None
    #: Of `asked`: the message for the user.
    asked: str | None = None
    element: Element | None = None
    #: Where it acted.
    position: Position | None = None
    #: What had happened since the step before, by itself.
    meanwhile: list[Effect] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    settled: Settled | None = None
    duration_ms: int = 0
    extra: Any = None

    @property
    def done(self) -> bool:
        """Whether it was carried out."""
        return self.outcome == "done"


@dataclass(frozen=True)
class Snapshot:
    """A page as text: an outline of its headings, texts and interactive elements, these with references."""

    text: str
    #: Estimated.
    tokens: int
    #: Interactive elements that the bound left out.
    left_out: int
    extra: Any = None


@dataclass(frozen=True)
class Picture:
    """A picture, kept as a blob."""

    blob: str
    #: Pixels.
    width: int
    #: Pixels.
    height: int
    extra: Any = None


class Browser:
    """A browser of the rollout: ``browser = Browser.open()``."""

    def __init__(self, opened: Any) -> None:
        self._open = opened

    @classmethod
    def open(cls, name: str = "main") -> "Browser":
        """The browser of this name, as the task names it; the first call starts it, at its start page."""
        return cls(wit.call(wit.browsers.open, convert.text_out(name, "name")))

    def tools(self) -> Tools:
        """The tools that the experiment gives the model in this browser, for a conversation. ``Tools.answer`` carries out each call by
        itself; `act` also skips those that were meant for a page that is not there any more."""
        tools = Tools()
        for tool in wit.call(self._open.tools):
            tools.add_given(GivenTool(tool.name, tool.description, tool.parameters, self._runner(tool.name)))
        return tools

    def act(self, calls: Sequence[ToolCall]) -> list[BrowserStep]:
        """Carries out calls of the model one after another, 32 at most, each until the page has settled. One step for each."""
        return self._act(convert.list_out(calls, "calls", _action_of_call, "ToolCall"))

    def tool(self, name: str, /, **arguments: Any) -> BrowserStep:
        """Carries out one tool with arguments of the plugin's own: ``browser.tool("goto_url", url="http://a.org/")``."""
        arguments_text = convert.json_out(arguments, "arguments")
        return self._act([wit.browsers.Action(convert.text_out(name, "name"), arguments_text)])[0]

    def tabs(self) -> list[Tab]:
        """The tabs."""
        return [_tab(tab) for tab in wit.call(self._open.tabs)]

    def snapshot(self, *, tokens_max: int | None = None, changes: bool = False, whole_page: bool = False) -> Snapshot:
        """The active tab as text, with references that are good until the next one: of about 2,000 tokens, or `tokens_max`, only what
        is new or gone with `changes`, also what is scrolled away with `whole_page`."""
        tokens = convert.optional_out(tokens_max, "tokens_max", convert.count_out)
        options = wit.browsers.SnapshotOptions(tokens, bool(changes), bool(whole_page), None)
        made = wit.call(self._open.snapshot, options)
        return Snapshot(made.text, made.tokens, made.left_out, convert.loaded(made.extra))

    def screenshot(
        self,
        *,
        format: Literal["png", "jpeg", "webp"] = "png",
        quality: int | None = None,
        scale: float | None = None,
        full_page: bool = False,
    ) -> Picture:
        """The active tab as a picture. `quality` is 1 to 100 (80), not for PNG; `scale` is its size over that of the viewport, up to
        4."""
        if format not in ("png", "jpeg", "webp"):
            raise convert.wrong("format", '"png", "jpeg" or "webp"', format)
        if quality is not None and (isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100):
            raise convert.wrong("quality", "an int from 1 to 100 or None", quality)
        scale = convert.optional_out(scale, "scale", convert.number_out)
        options = wit.browsers.ScreenshotOptions(wit.browsers.Format[format.upper()], quality, scale, bool(full_page), None)
        made = wit.call(self._open.screenshot, options)
        return Picture(made.blob, made.width, made.height, convert.loaded(made.extra))

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression where the page's own scripts run; promises are awaited. The page can forge it: a reward uses
        `evaluate_isolated`, or asks the page's server. Errors: ``Other("script", ...)`` for one that throws."""
        return self._evaluate(expression, wit.browsers.ScriptWorld.PAGE)

    def evaluate_isolated(self, expression: str) -> Any:
        """The same in a world of its own on the same document."""
        return self._evaluate(expression, wit.browsers.ScriptWorld.ISOLATED)

    def storage_state(self) -> Any:
        """Cookies and the local storage of each origin, as ``{"cookies": [...], "origins": [...]}``."""
        return convert.loaded(wit.call(self._open.storage_state))

    def close(self) -> None:
        """Drops the handle; the browser stays until the rollout is scored."""
        self._open.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _act(self, actions: list[Any]) -> list[BrowserStep]:
        return [_step(step) for step in wit.call(self._open.act, actions)]

    def _evaluate(self, expression: str, world: Any) -> Any:
        return convert.loaded(wit.call(self._open.evaluate, convert.text_out(expression, "expression"), world))

    def _runner(self, name: str) -> Callable[[str], str]:
        return lambda arguments: self._act([wit.browsers.Action(name, arguments)])[0].text


def _action_of_call(call: Any, path: str) -> Any:
    convert.instance_out(call, path, ToolCall)
    return wit.browsers.Action(*(convert.text_out(getattr(call, name), f"{path}.{name}") for name in ("name", "arguments")))


def _tab(tab: Any) -> Tab:
    return Tab(tab.index, tab.url, tab.title, tab.is_active, convert.loaded(tab.extra))


def _element(element: Any) -> Element:
    area = element.area
    box = None if area is None else Area(area.x, area.y, area.width, area.height)
    return Element(element.text, element.role, element.name, element.tag, box, convert.loaded(element.extra))


#: Names of the data of effects, by kind.
_RECORDS = {
    "navigated": ("url", "title", "status", "within_document"),
    "navigation-failed": ("url", "reason"),
    "tab-opened": ("index", "url", "title", "is_active"),
    "dialog": ("kind", "message", "answer"),
    "downloaded": ("name", "url", "blob", "length"),
    "download-failed": ("name", "reason"),
    "scrolled": ("what", "x", "y", "at_end"),
}
#: Name of the data of effects that have one value.
_VALUES = {"blocked": "url", "tab-closed": "index", "changed": "summary"}


def _effect(effect: Any) -> Effect:
    kind = convert.case_of(effect)
    if kind in _RECORDS:
        return Effect(kind, {name: getattr(effect.value, name) for name in _RECORDS[kind]})
    if kind in _VALUES:
        return Effect(kind, {_VALUES[kind]: effect.value})
    if kind == "console-errors":
        count, first = effect.value
        return Effect(kind, {"count": count, "first": first})
    if kind == "other":
        return Effect(kind, {"value": convert.loaded(effect.value)})
    return Effect(kind)


def _step(step: Any) -> BrowserStep:
    outcome = convert.case_of(step.outcome)
    value: Any = getattr(step.outcome, "value", None)
    settled, position = step.settled, step.position
    return BrowserStep(
        name=step.name,
        outcome=outcome,
        text=step.text,
        problem=Problem(value.code, value.text) if outcome == "failed" else None,
        skipped=value if outcome == "skipped" else None,
        ended=End(value.response, value.status) if outcome == "ended" else None,
        asked=value if outcome == "asked" else None,
        element=None if step.element is None else _element(step.element),
        position=None if position is None else Position(position.x, position.y),
        meanwhile=[_effect(effect) for effect in step.meanwhile],
        effects=[_effect(effect) for effect in step.effects],
        settled=None if settled is None else Settled(settled.cause, settled.after_ms, list(settled.pending)),
        duration_ms=step.duration_ms,
        extra=convert.loaded(step.extra),
    )
