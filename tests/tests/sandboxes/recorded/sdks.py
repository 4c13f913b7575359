"""The SDKs of OpenAI and Anthropic as they are, as clients of the recording proxy: whole and streamed answers, tools, errors, asyncio. Prints
nothing; a failed assertion is its exit code."""

import asyncio
import json
import os
import sys

import anthropic
import openai

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def chat():
    client = openai.OpenAI()
    assert [model.id for model in client.models.list()] == ["policy"]
    tools = [{"type": "function", "function": {"name": "ls", "description": "Lists.", "parameters": SCHEMA}}]
    messages = [{"role": "system", "content": "chat"}, {"role": "user", "content": "Use the tool."}]
    first = client.chat.completions.create(model="gpt", messages=messages, tools=tools)
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.\n"), choice
    call = choice.message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"path": "/"}, call
    # The SDK's own object goes back, and what it makes of it.
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "a.txt"}]
    stream = client.chat.completions.create(
        model="gpt", messages=messages, tools=tools, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "There is a.txt.", text
    assert chunks[-1].usage.completion_tokens > len("There is a.txt."), chunks[-1]
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Thanks."}]
    with client.chat.completions.stream(model="gpt", messages=messages, tools=tools) as events:
        last = events.get_final_completion().choices[0]
    assert last.message.content == "Bye.", last
    for wrong, field in [({"response_format": {"type": "json_object"}}, "response_format"), ({"n": 99}, "n")]:
        try:
            client.chat.completions.create(model="gpt", messages=messages[:2], **wrong)
        except openai.BadRequestError as error:
            assert error.param == field, error
        else:
            raise AssertionError(wrong)
    try:
        openai.OpenAI(api_key="sk-other").models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key", error
    else:
        raise AssertionError("a wrong key")


def responses():
    client = openai.OpenAI()
    tools = [{"type": "function", "name": "ls", "description": "Lists.", "parameters": SCHEMA, "strict": False}]
    first = client.responses.create(model="gpt", instructions="responses", input="Use the tool.", tools=tools)
    assert first.output_text == "I look.\n", first
    call = first.output[-1]
    assert (call.type, json.loads(call.arguments)) == ("function_call", {"path": "/"}), call
    output = [{"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"}]
    with client.responses.stream(
        model="gpt", instructions="responses", input=output, tools=tools, previous_response_id=first.id
    ) as events:
        second = events.get_final_response()
    assert second.output_text == "There is a.txt.", second
    # The same history, told whole.
    told = [{"role": "user", "content": "Use the tool."}, *first.output, *output, *second.output]
    third = client.responses.create(
        model="gpt", instructions="responses", tools=tools, input=[*told, {"role": "user", "content": "Thanks."}]
    )
    assert third.output_text == "Bye.", third


def messages():
    client = anthropic.Anthropic()
    tools = [{"name": "ls", "description": "Lists.", "input_schema": SCHEMA}]
    said = [{"role": "user", "content": "Use the tool."}]
    common = {"model": "claude", "max_tokens": 200, "system": "messages", "tools": tools}
    first = client.messages.create(messages=said, **common)
    text, call = first.content
    assert (first.stop_reason, text.text, call.input) == ("tool_use", "I look.\n", {"path": "/"}), first
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "a.txt"}
    said += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    with client.messages.stream(messages=said, **common) as events:
        assert "".join(events.text_stream) == "There is a.txt."
        second = events.get_final_message()
    assert (second.stop_reason, second.usage.output_tokens > 0) == ("end_turn", True), second
    said += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "Thanks."}]
    third = client.messages.create(messages=said, **common)
    assert third.content[0].text == "Bye.", third
    try:
        anthropic.Anthropic(api_key="other").messages.create(messages=said, **common)
    except anthropic.AuthenticationError:
        pass
    else:
        raise AssertionError("a wrong key")


async def at_once():
    """Sessions of sub-agents side by side, each with its own history."""
    client = openai.AsyncOpenAI()

    async def session(name):
        said = [{"role": "user", "content": f"Count {name}."}]
        for turn in range(3):
            answer = await client.chat.completions.create(model="gpt", messages=said)
            text = answer.choices[0].message.content
            assert text == f"{name} {turn + 1}", text
            said += [{"role": "assistant", "content": text}, {"role": "user", "content": "Next."}]

    await asyncio.gather(*(session(name) for name in "abcd"))


def retried():
    """A client that gives up early and asks again gets the one answer that was sampled."""
    client = openai.OpenAI(timeout=1.0, max_retries=9)
    answer = client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "Take your time."}])
    assert answer.choices[0].message.content == "Done.", answer


for name in sys.argv[1].split(","):
    asyncio.run(at_once()) if name == "at_once" else globals()[name]()
assert os.environ["OPENAI_API_KEY"].startswith("sk-espalier-")
