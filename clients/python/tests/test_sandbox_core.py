"""What decides, without any input or output: ids, repeats, events, output, messages."""

from __future__ import annotations

import json
import random
from typing import Any, Dict, List, Optional

import pytest
from espalier.sandbox import errors
from espalier.sandbox.core.calls import CallId, Calls
from espalier.sandbox.core.commands import command_body, sandbox_body
from espalier.sandbox.core.output import Assembly, Lines
from espalier.sandbox.core.requests import Body, Request, called, list_sandboxes, size, with_query
from espalier.sandbox.core.retry import Attempts, Cut, Policy
from espalier.sandbox.core.settings import Settings
from espalier.sandbox.core.sse import Message, Parser
from espalier.sandbox.core.terminal import Dialogue
from espalier.sandbox.model import Ended, Gap, Output, Result, SandboxInfo, Started, Stat

# Ids.


def test_the_floor_lies_below_the_first_call_without_an_answer() -> None:
    calls = Calls("s")
    assert calls.floor("a") == 0
    one, two, three = calls.allot("a"), calls.allot("a"), calls.allot("a")
    assert [str(each) for each in (one, two, three)] == ["s.1.1", "s.1.2", "s.1.3"]
    assert calls.floor("a") == 0
    calls.settle("a", two)
    assert calls.floor("a") == 0
    calls.settle("a", one)
    assert calls.floor("a") == 2
    calls.settle("a", three)
    assert calls.floor("a") == 3
    assert str(calls.allot("b")) == "s.1.1", "each sandbox counts by itself"


def test_the_floor_never_passes_an_id_that_may_still_be_sent() -> None:
    for seed in range(50):
        chance, calls = random.Random(seed), Calls()
        waiting: List[CallId] = []
        for _ in range(200):
            if waiting and chance.random() < 0.5:
                calls.settle("x", waiting.pop(chance.randrange(len(waiting))))
            else:
                waiting.append(calls.allot("x"))
            floor = calls.floor("x")
            assert all(each.counter > floor for each in waiting), f"seed {seed}"


def test_sessions_differ_and_a_forked_child_begins_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Calls().allot("x").session != Calls().allot("x").session
    calls = Calls()
    parents = calls.allot("x")
    monkeypatch.setattr("espalier.sandbox.core.calls.os.getpid", lambda: 1)
    child = calls.allot("x")
    assert child.session != parents.session and child.counter == 1


@pytest.mark.parametrize("text", ["", "a", "a.1", "a.0.1", "a.1.0", "a.1.x", "a b.1.1", "." * 3, "x" * 49 + ".1.1"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        CallId.parse(text)
    assert CallId.parse("a-b_C.2.30") == CallId("a-b_C", 2, 30)


# Repeats.


def unavailable(status: int = 503, code: str = "unavailable", after: Optional[str] = None, **more: Any) -> errors.ApiError:
    body = json.dumps({"code": code, "detail": "d", **more}).encode()
    return errors.api_error(status, {"retry-after": after} if after else {}, body)


@pytest.mark.parametrize(
    "failure, repeated",
    [
        (Cut("x"), True),
        (unavailable(), True),
        (unavailable(429, "rate-limited"), True),
        (unavailable(429, "quota-exceeded"), False),
        (unavailable(409, "id-reused"), False),
        (unavailable(410, "expired"), False),
        (unavailable(500, "internal"), False),
        (unavailable(504, "timeout"), True),
        (unavailable(504, "timeout", retryable=False), False),
        (unavailable(404, "not-found"), False),
        (unavailable(507, "disk-full"), False),
    ],
)
def test_what_is_repeated(failure: Any, repeated: bool) -> None:
    attempts = Attempts(Policy(), reached=True)
    if repeated:
        assert attempts.delay(failure, 0.0) > 0
        with pytest.raises((errors.ApiError, errors.ConnectionFailed)):
            attempts.delay(failure, 0.0, repeatable=False)
    else:
        with pytest.raises(type(failure)):
            attempts.delay(failure, 0.0)


def test_repeats_end_with_their_bound_and_begin_anew_with_progress() -> None:
    attempts, clock, pauses = Attempts(Policy(reconnect_within=10, random=lambda: 1.0), reached=True), 100.0, []
    with pytest.raises(errors.ConnectionFailed, match="after 10 attempts"):
        while True:
            pauses.append(attempts.delay(Cut("refused"), clock))
            clock += pauses[-1]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    attempts.progressed()
    assert attempts.delay(Cut("refused"), clock) == 0.05


def test_a_service_that_was_never_reached_is_given_up_sooner() -> None:
    attempts = Attempts(Policy(reconnect_within=60, connect_within=1), reached=False)
    attempts.delay(Cut("refused"), 0.0)
    with pytest.raises(errors.ConnectionFailed):
        attempts.delay(Cut("refused"), 1.1)


def test_the_service_says_when() -> None:
    attempts = Attempts(Policy(reconnect_within=60), reached=True)
    assert attempts.delay(unavailable(after="7"), 0.0) == 7.0
    with pytest.raises(errors.Unavailable) as caught:
        attempts.delay(unavailable(after="58"), 3.0)
    assert caught.value.attempts == 2


# Errors.


@pytest.mark.parametrize(
    "status, code, kind",
    [
        (401, "unauthenticated", errors.Unauthenticated),
        (403, "forbidden", errors.Forbidden),
        (403, "denied", errors.Denied),
        (409, "patch", errors.PatchRejected),
        (410, "gone", errors.Expired),
        (410, "sandbox-lost", errors.SandboxLost),
        (502, "no-listener", errors.NoListener),
        (507, "disk-full", errors.DiskFull),
        (418, "new-code", errors.ApiError),
        (409, "new-code", errors.Conflict),
    ],
)
def test_errors_are_typed_by_their_code_and_else_by_their_status(status: int, code: str, kind: type) -> None:
    body = {"code": code, "detail": "it is so", "hint": "do that", "request_id": "r7", "retryable": False}
    error = errors.api_error(status, {}, json.dumps(body).encode())
    assert type(error) is kind
    assert (error.status, error.code, error.hint, error.request_id) == (status, code, "do that", "r7")
    assert str(error) == f"it is so ({code}, status {status}, request r7)\nhint: do that"


def test_an_error_that_is_no_problem_document_is_quoted() -> None:
    error = errors.api_error(502, {"x-request-id": "q"}, b"<html>Bad Gateway")
    assert "Bad Gateway" in str(error) and error.request_id == "q" and error.retryable


# Server-sent events.

STREAM = 'event: stdout\nid: 3:0\ndata: {"a":\ndata: 1}\n\n: alive\n\nevent: ended\r\ndata: é\r\n\r\ndata: x\r\rid: 9\n\n'.encode()
MESSAGES = [
    Message("stdout", '{"a":\n1}', "3:0"),
    Message(None, ""),
    Message("ended", "é"),
    Message("message", "x"),
]


def test_events_come_whole_from_any_pieces() -> None:
    for first in range(len(STREAM) + 1):
        for second in range(first, len(STREAM) + 1, 3):
            parser = Parser()
            pieces = [STREAM[:first], STREAM[first:second], STREAM[second:]]
            assert [message for piece in pieces for message in parser.feed(piece)] == MESSAGES, (first, second)


def test_an_event_that_is_not_complete_is_none() -> None:
    parser = Parser()
    assert list(parser.feed(b"event: ended\ndata: {}\n")) == []
    assert list(parser.feed(b"\n")) == [Message("ended", "{}")]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("espalier.sandbox.core.sse.LINE_BYTES_MAX", 1000)
    parser = Parser()
    with pytest.raises(errors.ProtocolError):
        for _ in range(11):
            list(parser.feed(b"x" * 100))


# Output.


def message(event: str, **data: Any) -> Message:
    return Message(event, json.dumps(data))


def test_every_byte_once_from_pieces_that_overlap() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        data = {name: bytes(chance.randrange(256) for _ in range(200)) for name in ("stdout", "stderr")}
        assembly, got = Assembly(), {"stdout": b"", "stderr": b""}
        while any(len(got[name]) < 200 for name in got):
            name = chance.choice(["stdout", "stderr"])
            start = chance.randrange(len(got[name]) + 1)
            piece = data[name][start : start + chance.randrange(30)]
            for event in assembly.output(name, start, piece):
                assert isinstance(event, Output)
                assert event.offset == len(got[name]), f"seed {seed}"
                got[name] += event.data
        assert got == data, f"seed {seed}"


def test_text_is_cut_at_characters_however_bytes_are_cut() -> None:
    data, assembly, text = "é漢🌲 end".encode() + b"\xff", Assembly(), ""
    for at, byte in enumerate(data):
        for event in assembly.output("stdout", at, bytes([byte])):
            assert isinstance(event, Output)
            text += event.text
    assert text == "é漢🌲 end\ufffd"


def test_what_is_lost_is_said() -> None:
    assembly = Assembly()
    assert list(assembly.take(message("gap", stream="stdout", **{"from": 0, "to": 5}))) == [Gap("stdout", 0, 5)]
    assert list(assembly.take(message("gap", stream="stdout", **{"from": 2, "to": 4}))) == []
    unsaid = list(assembly.take(message("stdout", offset=8, text="x")))
    assert unsaid == [Gap("stdout", 5, 8), Output("stdout", 8, b"x", "x")]
    end = list(assembly.take(message("ended", id="a.1.1", state="ended", stdout_bytes=12)))
    assert end[0] == Gap("stdout", 9, 12) and isinstance(end[1], Ended) and assembly.ended


def test_a_problem_in_mid_stream_is_an_error_and_nonsense_is_refused() -> None:
    with pytest.raises(errors.SandboxLost):
        list(Assembly().take(message("error", code="sandbox-lost", status=410)))
    for bad in (Message("stdout", "x"), Message("stdout", "[]"), message("stdout", offset=-1), message("gap", stream="x")):
        with pytest.raises(errors.ProtocolError):
            list(Assembly().take(bad))
    assert list(Assembly().take(message("of-later", x=1))) == []


def test_started_comes_once() -> None:
    assembly = Assembly()
    assert list(assembly.take(message("started", id="a.1.1"))) == [Started("a.1.1")]
    assert list(assembly.take(message("started", id="a.1.1"))) == []


def test_lines() -> None:
    lines, got = Lines(), []
    for event in [
        Output("stdout", 0, b"", "a\nb"), Output("stderr", 0, b"", "E"), Output("stdout", 0, b"", "c\n\nd"), Ended(Result("x")),
    ]:  # fmt: skip
        got += list(lines.take(event))
    assert got == ["a", "bc", "", "d", "E"]
    with pytest.raises(errors.Lost):
        list(Lines().take(Gap("stdout", 0, 3)))


# Requests.


def test_paths_need_not_be_text() -> None:
    assert with_query("/f", [("a", True), ("b", None)], {"path": b"/x y/\xff&"}) == "/f?path=/x%20y/%FF%26&a=true"
    assert with_query("/f", [], {"path": "/é"}) == "/f?path=/%C3%A9"


def test_labels_ask_by_value_or_by_name() -> None:
    assert list_sandboxes({"run": "a b", "kept": ""}, None, None, 5, None).path == (
        "/v1/sandboxes?label=run%3Da+b&label=kept&limit=5"
    )


def test_the_floor_stands_beside_the_id() -> None:
    assert called(Request("POST", "/"), CallId("s", 1, 9), 4).headers["espalier-call"] == "s.1.9; floor=4"
    assert called(Request("POST", "/"), CallId("s", 1, 9), 0).headers["espalier-call"] == "s.1.9"


@pytest.mark.parametrize("given, told", [("2Gi", "2GiB"), ("512Mi", "512MiB"), ("2GiB", "2GiB"), ("100", 100), (7, 7)])
def test_sizes_of_kubernetes_are_understood(given: Any, told: Any) -> None:
    assert size(given) == told


def test_bodies() -> None:
    assert command_body("ls", None, None, None) == {"command": "ls", "timeout_s": 0}
    body = command_body("ls", 5, "/x", {"A": "b"}, login_shell=True, stdin=b"\xff", terminal=(3, 4))
    assert body == {
        "command": ["bash", "-lc", "ls"], "timeout_s": 5, "cwd": "/x", "env": {"A": "b"}, "stdin_base64": "/w==",
        "terminal": {"rows": 3, "columns": 4},
    }  # fmt: skip
    none: Dict[str, Any] = dict.fromkeys(
        ["image", "block_network", "cpu", "memory", "disk", "network", "env", "files", "setup", "labels", "require",
         "checkpoint"]
    )  # fmt: skip
    assert sandbox_body(**none) == {"image": "host"}
    assert sandbox_body(**{**none, "checkpoint": "c"}) == {"checkpoint": "c"}
    assert sandbox_body(**{**none, "cpu": "1500m", "memory": "4Gi"}) == {"image": "host", "cpu": 1.5, "memory": "4GiB"}
    with pytest.raises(ValueError, match="name what may be reached"):
        sandbox_body(**{**none, "block_network": False})


def test_a_file_that_shrinks_while_it_is_sent_is_an_error(tmp_path: Any) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    assert b"".join(Body(2, lambda: open(path, "rb")).pieces()) == b"ab"
    with pytest.raises(OSError, match="1 bytes shorter"):
        list(Body(4, lambda: open(path, "rb")).pieces())


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ESPALIER_URL", raising=False)
    with pytest.raises(ValueError, match="ESPALIER_URL"):
        Settings.of(None, None, 1)
    monkeypatch.setenv("ESPALIER_URL", "https://h:1/x/")
    monkeypatch.setenv("ESPALIER_API_KEY", "k")
    settings = Settings.of(None, None, 1)
    assert (settings.base_url, settings.api_key) == ("https://h:1/x", "k")
    assert settings.socket_url("/v1") == "wss://h:1/x/v1"
    for bad in ("localhost:80", "ftp://x", "http://", "http://x?y"):
        with pytest.raises(ValueError):
            Settings.of(bad, None, 1)


# Values.


def test_values_keep_what_they_do_not_know_and_are_read_like_dictionaries() -> None:
    info = SandboxInfo.read({"id": "x", "state": "failed", "new": 1, "error": {"code": "c", "detail": "d"}})
    assert info.raw["new"] == 1 and info.error is not None and info.error.detail == "d" and info["id"] == "x"
    stat = Stat.read({"path": "a/b.py", "kind": "folder", "size": 3, "modified_ms": 0})
    assert (stat["name"], stat["type"], stat["modified"]) == ("b.py", "directory", "1970-01-01T00:00:00+00:00")
    with pytest.raises(errors.ProtocolError, match="id"):
        SandboxInfo.read({"state": "running"})


@pytest.mark.parametrize(
    "raw, status, ending",
    [
        ({"state": "running"}, "running", "is running"),
        ({"state": "ended", "outcome": "exit", "exit_code": 0}, "succeeded", "ended with exit code 0"),
        ({"state": "ended", "outcome": "exit", "exit_code": 124}, "failed", "ended with exit code 124"),
        ({"state": "ended", "outcome": "timed-out"}, "failed", "ran into its time limit"),
        ({"state": "ended", "outcome": "signal", "signal": 9}, "failed", "was ended by signal 9"),
        ({"state": "ended", "outcome": "unknown", "message": "sandbox lost"}, "failed", "has an unknown end: sandbox lost"),
    ],
)
def test_results_in_orchards_words(raw: Dict[str, Any], status: str, ending: str) -> None:
    result = Result.read({"id": "a.1.1", **raw})
    assert (result.job_id, result.status, result.ending) == ("a.1.1", status, ending)
    assert result.timed_out == (raw.get("outcome") == "timed-out")
    assert result.lost == (raw.get("outcome") == "unknown")
    if status == "failed":
        with pytest.raises(errors.CommandFailed, match="a.1.1"):
            result.check()


# The messages of terminals.


def test_input_is_sent_again_from_where_it_was_taken() -> None:
    dialogue = Dialogue("s.1.1")
    assert dialogue.input(b"abc") == bytes(8) + b"abc"
    assert dialogue.input(b"def")[7:] == b"\x03def"
    assert dialogue.again(6) == []
    assert dialogue.again(2) == [bytes(7) + b"\x02cdef"]
    dialogue.input(b"x" * 300_000)
    assert [len(each) for each in dialogue.again(6)] == [(256 << 10) + 8, 300_000 - (256 << 10) + 8]
    dialogue.input(b"x" * (1 << 20))
    with pytest.raises(errors.EspalierError, match="lost in a cut"):
        dialogue.again(5)


def test_a_terminals_output_comes_once_and_attaches_where_it_stopped() -> None:
    dialogue = Dialogue("s.1.1")
    frame = b"\x01" + bytes(8) + b"hello"
    events = [*dialogue.take('{"event": "started", "id": "s.1.1", "pid": 5}'), *dialogue.take(frame), *dialogue.take(frame)]
    assert events == [Started("s.1.1"), Output("stdout", 0, b"hello", "hello")] and dialogue.pid == 5
    assert json.loads(dialogue.attach())["attach"] == {"id": "s.1.1", "stdout_from": 5, "stderr_from": 0}
    for bad in (b"", b"\x03" + bytes(9), "x"):
        with pytest.raises(errors.ProtocolError):
            list(dialogue.take(bad))
