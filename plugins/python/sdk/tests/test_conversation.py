"""Conversations."""

import fake_world
import pytest

from espalier_sdk import Conversation, Image, Invalid, Message


def said(opened: fake_world.Opened) -> list[tuple[str, object]]:
    return [(message.role.name.lower(), part.value) for message in opened.messages for part in message.parts]


def test_messages_are_sent_with_the_answer(world: fake_world.World) -> None:
    world.answers = [fake_world.completion("5"), fake_world.completion("6", extra='{"call": "c"}')]
    conversation = Conversation(max_tokens=8, stop=["\n"])
    conversation.system("Be brief.").user("2 + 3?", images=["b1"])
    assert world.opened == []
    answer = conversation.complete(temperature=0.5)
    assert (answer.text, answer.finish, answer.call, answer.usage.turns) == ("5", "stop", None, 1)
    (opened,) = world.opened
    assert opened.model == "policy"
    assert opened.options == [fake_world.conversations.Options(8, ["\n"], 0.5, None, None)]
    conversation.user("3 + 3?")
    assert conversation.complete().call == "c"
    assert said(opened) == [
        ("system", "Be brief."),
        ("user", "2 + 3?"),
        ("user", "b1"),
        ("assistant", "5"),
        ("user", "3 + 3?"),
        ("assistant", "6"),
    ]


def test_branches_go_their_own_way(world: fake_world.World) -> None:
    world.answers = [fake_world.completion("a"), fake_world.completion("b"), fake_world.completion("c")]
    conversation = Conversation("judge").user("Well?")
    (first, answer), (second, _) = conversation.complete_many(2)
    assert answer.text == "a" and first.model == "judge"
    second.discard()
    assert first.user("And?").complete().text == "c"
    assert len(world.opened) == 1
    conversation.rewrite([Message("user", ["Again:", Image("b")])])
    assert said(world.opened[0]) == [("user", "Again:"), ("user", "b")]


def test_misuse_is_named() -> None:
    with pytest.raises(TypeError, match=r"user\.parts\[0\]: expected a str, Image, ToolCall or ToolResult, got 4 \(int\)"):
        Conversation().user(4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"max_tokens: expected an int from 0 to 4294967295 or None, got 'x' \(str\)"):
        Conversation().complete(max_tokens="x")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="no answer yet"):
        Conversation().set_trainable(0, False)
