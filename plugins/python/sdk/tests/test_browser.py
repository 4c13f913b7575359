"""Browsers and services."""

from typing import Any

import fake_world
import pytest

from espalier_sdk import Browser, Conversation, Effect, Element, End, Invalid, Problem, Service, Settled, ToolCall
from espalier_sdk.convert import WrongValue

wit = fake_world.browsers


class Opened:
    """A browser of the fake engine: gives its steps in order, and keeps what it is asked."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.asked: list[Any] = []

    def tools(self) -> list[Any]:
        return [wit.Tool("click", "Clicks.", '{"type": "object"}')]

    def act(self, actions: list[Any]) -> list[Any]:
        self.asked.extend(actions)
        return [self.steps.pop(0) for _ in actions]

    def tabs(self) -> list[Any]:
        return [wit.Tab(0, "about:blank", "", True, '{"a": 1}')]

    def snapshot(self, options: Any) -> Any:
        self.asked.append(options)
        return wit.Snapshot("button", 2, 0, None)

    def screenshot(self, options: Any) -> Any:
        self.asked.append(options)
        return wit.Picture("b1", 2, 1, None)

    def evaluate(self, expression: str, world: Any) -> str:
        self.asked.append((expression, world))
        return '{"a": 1}'

    def storage_state(self) -> str:
        return '{"cookies": []}'


def step(name: str, outcome: Any, effects: tuple[Any, ...] = (), element: Any = None, settled: Any = None) -> Any:
    return wit.Step(name, outcome, element, None, [], list(effects), settled, 5, f"{name}.", None)


def opened(world: fake_world.World, *steps: Any) -> tuple[Browser, Opened]:
    world.browsers["main"] = Opened(*steps)
    return Browser.open(), world.browsers["main"]


def test_steps_say_what_became_of_them(world: fake_world.World) -> None:
    effects = (
        wit.Effect_Navigated(wit.Navigation("http://a/", "A", 200, False)),
        wit.Effect_Blocked("file:///"),
        wit.Effect_TabOpened(wit.Tab(1, "http://a/", "A", True, None)),
        wit.Effect_TabClosed(2),
        wit.Effect_Dialog(wit.Dialog("alert", "Hm.", "dismissed")),
        wit.Effect_ConsoleErrors((3, "TypeError")),
        wit.Effect_Changed("2 new"),
        wit.Effect_NothingChanged(),
        wit.Effect_Other("[1]"),
    )
    element = wit.Element('button "Go"', "button", "Go", "button", wit.Area(1, 2, 3, 4), None)
    browser, asked = opened(
        world,
        step("click", wit.Outcome_Done(), effects, element, wit.Settled("quiet", 9, [])),
        step("click", wit.Outcome_Failed(wit.Problem("stale-reference", "e1 is gone"))),
        step("write", wit.Outcome_Skipped("an action before it failed")),
        step("done", wit.Outcome_Ended(wit.End("ok", None))),
        step("call_user", wit.Outcome_Asked("Which?")),
        step("new", wit.Outcome_Other("[1]")),
    )
    first = browser.tool("click", ref="e1")
    assert asked.asked == [wit.Action("click", '{"ref": "e1"}')]
    assert (first.done, first.text, first.duration_ms, first.settled) == (True, "click.", 5, Settled("quiet", 9, []))
    assert first.element == Element('button "Go"', "button", "Go", "button", (1, 2, 3, 4), None)  # type: ignore[arg-type]
    assert first.effects == [
        Effect("navigated", {"url": "http://a/", "title": "A", "status": 200, "within_document": False}),
        Effect("blocked", {"url": "file:///"}),
        Effect("tab-opened", {"index": 1, "url": "http://a/", "title": "A", "is_active": True}),
        Effect("tab-closed", {"index": 2}),
        Effect("dialog", {"kind": "alert", "message": "Hm.", "answer": "dismissed"}),
        Effect("console-errors", {"count": 3, "first": "TypeError"}),
        Effect("changed", {"summary": "2 new"}),
        Effect("nothing-changed"),
        Effect("other", {"value": [1]}),
    ]
    calls = [ToolCall("c", name, "{}") for name in ("click", "write", "done", "call_user", "new")]
    failed, skipped, ended, told, other = browser.act(calls)
    assert (failed.outcome, failed.problem) == ("failed", Problem("stale-reference", "e1 is gone"))
    assert (skipped.outcome, skipped.skipped) == ("skipped", "an action before it failed")
    assert (ended.outcome, ended.ended) == ("ended", End("ok"))
    assert (told.outcome, told.asked) == ("asked", "Which?")
    assert (other.outcome, other.done) == ("other", False)


def test_what_is_shown_is_asked_for_by_name(world: fake_world.World) -> None:
    browser, asked = opened(world)
    assert browser.snapshot(tokens_max=500, changes=True).text == "button"
    assert browser.screenshot(format="jpeg", quality=50).blob == "b1"
    assert browser.evaluate("a") == browser.evaluate_isolated("b") == {"a": 1}
    assert (browser.storage_state(), browser.tabs()[0].extra) == ({"cookies": []}, {"a": 1})
    assert asked.asked == [
        wit.SnapshotOptions(500, True, False, None),
        wit.ScreenshotOptions(wit.Format.JPEG, 50, None, False, None),
        ("a", wit.ScriptWorld.PAGE),
        ("b", wit.ScriptWorld.ISOLATED),
    ]
    with pytest.raises(WrongValue, match='format: expected "png", "jpeg" or "webp", got .gif.'):
        browser.screenshot(format="gif")  # type: ignore[arg-type]
    with pytest.raises(WrongValue, match="quality: expected an int from 1 to 100 or None, got 0"):
        browser.screenshot(format="jpeg", quality=0)
    with pytest.raises(WrongValue, match=r"calls\[0\]: expected a ToolCall"):
        browser.act(["click"])  # type: ignore[list-item]


def test_a_model_is_offered_the_tools_of_the_browser(world: fake_world.World) -> None:
    browser, asked = opened(world, step("click", wit.Outcome_Done()))
    world.answers = [fake_world.completion("", (("1", "click", '{"ref": "e1"}'),)), fake_world.completion("Done.")]
    tools = browser.tools()
    conversation = Conversation(tools=tools).user("Go.")
    assert tools.answer(conversation.complete(), conversation) == 1
    conversation.complete()
    assert asked.asked == [wit.Action("click", '{"ref": "e1"}')]
    (model,) = world.opened
    assert model.tools == [fake_world.conversations.Tool("click", "Clicks.", '{"type": "object"}')]
    assert model.messages[2].parts[0].value.text == "click."


def test_a_service_answers_json_and_what_it_refuses_is_a_failure(world: fake_world.World) -> None:
    world.replies = {"/go": (200, '{"cart": ["lamp"]}'), "/no": (404, '{"error": {}}'), "/html": (200, "<p>")}
    shop = Service("shop")
    assert shop.get("/go") == shop.post("/go", {"a": 1}) == {"cart": ["lamp"]}
    assert world.requests == [("shop", "GET", "/go", b""), ("shop", "POST", "/go", b'{"a": 1}')]
    assert shop.request("GET", "/no").status == 404
    with pytest.raises(Invalid, match='shop/no: status 404: {"error": {}}'):
        shop.get("/no")
    with pytest.raises(Invalid, match="shop/html: .*: <p>"):
        shop.get("/html")
