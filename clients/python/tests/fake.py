"""A service to test the client against: a slice of the interface over real connections, with faults on a schedule.

What a real service keeps beyond its own death (sandboxes, commands and their output, which agents keep) is kept here over
`restart`. A "command" is text: `print BYTES SEED` prints so many bytes on each stream, `fail N` exits with N, `cat` returns its input,
`deaf` never reads its own. A sandbox is made while it is waited for; one of the image `slow` when `sandboxes[id]["state"]` says so.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

KEY = "esp_test"


@dataclass
class Fault:
    """What goes wrong with one request: `refuse` (closed before anything is done), `silent` (not done, and open until the client
    leaves), `drop` (done, not answered), `begun` (done, and only the head of the answer comes), `cut` (the answer ends after so
    many bytes), `phantom` (the same, and nothing of it was done), `status` (answered with it, not done), `restart` (everything
    is closed for a while)."""

    kind: str
    after: int = 0


@dataclass
class Command:
    """A record, as an agent keeps it."""

    id: str
    body: Dict[str, Any]
    runs: int = 1
    out: Dict[str, bytes] = field(default_factory=dict)
    input: bytes = b""
    input_ended: bool = False
    exit_code: Optional[int] = 0
    #: Bytes before it that are no longer kept.
    kept_from: int = 0
    #: The same, from when its output is being sent on.
    lost_meanwhile: int = 0
    #: The answer of output says where it ends.
    end_told: bool = True


def printed(size: int, seed: int, stream: str) -> bytes:
    """Text of one to four bytes a character, with lines and some bytes that are not text."""
    chance = random.Random(f"{seed} {stream}")
    out = bytearray()
    while len(out) < size:
        out += chance.choice([b"line\n", "é".encode(), "漢字".encode(), "🌲".encode(), b"\xff", b"\r\n", b"data: x\n\n"])
    return bytes(out[:size])


class Service:
    """Listens on a port of its own, by a thread of its own."""

    def __init__(self, fault: Optional[Callable[[int, str, str], Optional[Fault]]] = None, chunk: int = 37) -> None:
        self.fault, self.chunk = fault or (lambda number, method, path: None), chunk
        self.requests: List[Tuple[str, str, Dict[str, str], bytes]] = []
        self.commands: Dict[Tuple[str, str], Command] = {}
        self.sandboxes: Dict[str, Dict[str, Any]] = {}
        self.keys: Dict[str, str] = {}
        self.files: Dict[bytes, bytes] = {}
        self.calls: Dict[str, Tuple[Any, Tuple[int, bytes]]] = {}
        self.version = 1
        #: Sandboxes that were ever made.
        self.count = 0
        #: Called between an answer and sending it.
        self.answered: Callable[[], None] = lambda: None
        self.away = 0.05
        self.port = 0
        self._writers: "set[asyncio.StreamWriter]" = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _restart(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(self.away)
        await self._listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether another may follow."""
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((method, target, headers, body))
        if headers.get("upgrade") == "websocket":
            from fake_sockets import serve

            await serve(self, target, head, reader, writer)
            return False
        fault = self.fault(len(self.requests), method, target)
        kind = fault.kind if fault else ""
        if kind == "refuse":
            return False
        if kind == "silent":
            await reader.read()
            return False
        if kind == "restart":
            asyncio.ensure_future(self._restart())
            return False
        if kind == "status" and fault:
            away = fault.after == 503
            problem = {"status": fault.after, "detail": "away", "retryable": away, "code": "unavailable" if away else None}
            status, more, answer = fault.after, {"retry-after": "0"}, json.dumps(problem).encode()
        else:
            kept = dict(self.commands)
            status, more, answer = self._answer(method, target, headers, body)
            await asyncio.sleep(float(more.pop("late", 0)))
            if kind == "phantom":
                self.commands = kept
        self.answered()
        if kind == "drop":
            return False
        stream = more.get("content-type") == "text/event-stream"
        length = "transfer-encoding: chunked" if stream else f"content-length: {len(answer)}"
        if method == "HEAD":
            answer = b""
        head_out = f"HTTP/1.1 {status} X\r\n{length}\r\n" + "".join(f"{k}: {v}\r\n" for k, v in more.items()) + "\r\n"
        out = answer
        if stream:
            pieces = [answer[at : at + self.chunk] for at in range(0, len(answer), self.chunk)]
            out = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        raw = head_out.encode() + out
        if kind == "begun":
            writer.write(head_out.encode())
            await reader.read()
            return False
        if kind in ("cut", "phantom") and fault:
            writer.write(raw[: fault.after])
            await writer.drain()
            return False
        writer.write(raw)
        await writer.drain()
        return True

    # What it answers.

    def _problem(self, status: int, code: str, detail: str = "", hint: str = "") -> Tuple[int, Dict[str, str], bytes]:
        body = {"status": status, "code": code, "title": code, "detail": detail or code, "hint": hint or None}
        body.update(request_id="r1", retryable=False)
        return status, {"content-type": "application/problem+json"}, json.dumps(body).encode()

    @staticmethod
    def _json(status: int, value: Any) -> Tuple[int, Dict[str, str], bytes]:
        return status, {"content-type": "application/json"}, json.dumps(value).encode()

    def _answer(self, method: str, target: str, headers: Dict[str, str], body: bytes) -> Tuple[int, Dict[str, str], bytes]:
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        parts = url.path.strip("/").split("/")
        if url.path == "/health":
            return self._json(200, {"status": "ok"})
        if headers.get("authorization") != f"Bearer {KEY}":
            return self._problem(401, "unauthenticated", hint="set ESPALIER_API_KEY")
        if parts[:2] != ["v1", "sandboxes"]:
            return self._problem(404, "not-found")
        if len(parts) == 2:
            return self._collection(method, float(query.get("wait_s", 60)), headers, body)
        sandbox = self.sandboxes.get(parts[2])
        if sandbox is None:
            return self._problem(404, "not-found")
        rest = parts[3:]
        if not rest:
            return self._whole(method, sandbox)
        if rest == ["heartbeat"]:
            sandbox["heartbeats"] = sandbox.get("heartbeats", 0) + 1
            return self._json(200, sandbox)
        if rest == ["wait"]:
            late = self._made(sandbox, float(query["timeout_s"]))
            status, more, answer = self._json(200, sandbox)
            return status, {**more, "late": str(late)}, answer
        if rest[0] == "commands":
            return self._commands(method, parts[2], rest[1:], query, headers, body)
        if rest == ["files"]:
            return self._files(method, url.query, headers, body)
        return self._problem(404, "not-found", f"no route {target}")

    @staticmethod
    def _made(sandbox: Dict[str, Any], wait_s: float) -> float:
        """Waits for it; how long the answer takes."""
        if sandbox["state"] != "creating" or not wait_s:
            return 0
        if sandbox["image"] == "slow":
            return wait_s
        if sandbox["image"] == "missing":
            sandbox["error"] = {"code": "image", "detail": "no such image", "hint": "check its name"}
        sandbox["state"] = "failed" if sandbox["image"] == "missing" else "running"
        return 0

    def _collection(
        self, method: str, wait_s: float, headers: Dict[str, str], body: bytes
    ) -> Tuple[int, Dict[str, str], bytes]:
        if method == "GET":
            return self._json(200, {"sandboxes": list(self.sandboxes.values()), "next": None})
        asked = json.loads(body)
        key = headers["idempotency-key"]
        if self.keys.get(key) not in self.sandboxes:
            self.count += 1
            self.keys[key] = f"sandbox{self.count:05}"
            made = {"id": self.keys[key], "state": "creating", "image": asked.get("image", ""), "asked": asked}
            self.sandboxes[self.keys[key]] = {**made, "labels": asked.get("labels", {}), "network": "none"}
        sandbox = self.sandboxes[self.keys[key]]
        late = self._made(sandbox, wait_s)
        status, more, answer = self._json(202 if sandbox["state"] == "creating" else 201, sandbox)
        return status, {**more, "late": str(late)}, answer

    def _whole(self, method: str, sandbox: Dict[str, Any]) -> Tuple[int, Dict[str, str], bytes]:
        if method == "DELETE":
            sandbox["state"] = "ended"
            return 204, {}, b""
        return self._json(200, sandbox)

    def _commands(
        self, method: str, sandbox: str, rest: List[str], query: Dict[str, str], headers: Dict[str, str], body: bytes
    ) -> Tuple[int, Dict[str, str], bytes]:
        if not rest and method == "POST":
            asked = json.loads(body)
            told = {key: asked.get(key) for key in ("command", "env", "cwd", "stdin")}
            record = self.commands.get((sandbox, asked["id"]))
            if record is None and int(asked["id"].rsplit(".", 1)[1]) <= asked.get("floor", 0):
                return self._problem(410, "expired")
            if record is None:
                record = self._run(sandbox, asked["id"], told)
            elif record.body != told:
                return self._problem(409, "id-reused")
        elif not rest:
            return self._json(200, {"commands": [self._result(each, False) for each in self.commands.values()]})
        else:
            found = self.commands.get((sandbox, rest[0]))
            if found is None:
                return self._problem(404, "not-found")
            record = found
        if rest[1:] == ["input"]:
            return self._input(record, int(query["offset"]), body, query.get("end") == "true", float(query.get("wait_s", 60)))
        if rest[1:] == ["output"]:
            return self._output(record, query["stream"], int(query["from"]))
        if headers.get("accept") == "text/event-stream":
            return 200, {"content-type": "text/event-stream"}, self._stream(record, query)
        return self._json(200 if record.exit_code is not None else 202, self._result(record, True))

    def _run(self, sandbox: str, id: str, told: Dict[str, Any]) -> Command:
        record = Command(id, told)
        self.commands[(sandbox, id)] = record
        words = str(told["command"]).split()
        if words[0] == "print":
            record.out = {name: printed(int(words[1]), int(words[2]), name) for name in ("stdout", "stderr")}
        if words[0] == "fail":
            record.exit_code = int(words[1])
        if words[0] in ("cat", "deaf"):
            record.exit_code = None
        return record

    def _input(
        self, record: Command, offset: int, body: bytes, end: bool, wait_s: float
    ) -> Tuple[int, Dict[str, str], bytes]:
        if offset > len(record.input):
            return self._problem(422, "invalid", f"offset {offset} leaves a hole")
        if not 0 <= wait_s <= 600:
            return self._problem(422, "invalid", f"wait_s is {wait_s}")
        deaf = record.body.get("command") == "deaf"
        # It takes a part only, as one that reads slowly until `wait_s` is over; for that nobody waits here.
        new = b"" if deaf else body[len(record.input) - offset :][:1000]
        record.input += new
        if end and not deaf and len(record.input) >= offset + len(body):
            record.out["stdout"], record.exit_code = record.input, 0
        status, more, answer = self._json(200, {"taken": len(record.input), "closed": False})
        return status, {**more, "late": str(wait_s if deaf and body else 0)}, answer

    def _output(self, record: Command, stream: str, at: int) -> Tuple[int, Dict[str, str], bytes]:
        data = record.out.get(stream, b"")
        more = {"content-type": "application/octet-stream"}
        if record.end_told:
            more["espalier-end"] = str(len(data))
        if at < record.kept_from:
            more["espalier-gap"] = f"{at}-{record.kept_from}"
        return 200, more, data[max(at, record.kept_from, record.lost_meanwhile) :]

    def _result(self, record: Command, output: bool) -> Dict[str, Any]:
        out, err = (record.out.get(name, b"") for name in ("stdout", "stderr"))
        ended = record.exit_code is not None
        answer: Dict[str, Any] = {"id": record.id, "state": "ended" if ended else "running"}
        answer.update(outcome="exit" if ended else None, exit_code=record.exit_code)
        answer.update(stdout_bytes=len(out), stderr_bytes=len(err), stdout_omitted=0, stderr_omitted=0)
        if output:
            answer.update(stdout=out.decode("utf-8", "replace"), stderr=err.decode("utf-8", "replace"))
            answer.update(stdout_base64=base64.b64encode(out).decode(), stderr_base64=base64.b64encode(err).decode())
        return answer

    def _stream(self, record: Command, query: Dict[str, str]) -> bytes:
        at = {"stdout": int(query.get("stdout_from", 0)), "stderr": int(query.get("stderr_from", 0))}
        out = [": hello\n", self._event("started", at, {"id": record.id})]
        for name in ("stdout", "stderr"):
            data = record.out.get(name, b"")
            if at[name] < record.kept_from:
                gap = {"stream": name, "from": at[name], "to": record.kept_from}
                at[name] = record.kept_from
                out.append(self._event("gap", at, gap))
            while at[name] < len(data):
                piece = data[at[name] : at[name] + 23]
                value: Dict[str, Any] = {"offset": at[name]}
                try:
                    value["text"] = piece.decode()
                except UnicodeDecodeError:
                    value["base64"] = base64.b64encode(piece).decode()
                at[name] += len(piece)
                out.append(self._event(name, at, value))
        out.append(self._event("ended", at, self._result(record, False)))
        return "".join(out).encode()

    @staticmethod
    def _event(name: str, at: Dict[str, int], data: Dict[str, Any]) -> str:
        return f"event: {name}\nid: {at['stdout']}:{at['stderr']}\ndata: {json.dumps(data)}\n\n"

    def _files(self, method: str, query: str, headers: Dict[str, str], body: bytes) -> Tuple[int, Dict[str, str], bytes]:
        path = unquote_to_bytes(dict(part.split("=", 1) for part in query.split("&"))["path"])
        if method == "PUT":
            call = headers["espalier-call"].split(";")[0]
            if call not in self.calls:
                self.files[path] = body
                self.version += 1
                stat = {"path": "x", "kind": "file", "mode": "0644", "size": len(body)}
                self.calls[call] = (body, (201, json.dumps(stat).encode()))
            elif self.calls[call][0] != body:
                return self._problem(409, "id-reused")
            return self.calls[call][1][0], {"content-type": "application/json"}, self.calls[call][1][1]
        if path not in self.files:
            return self._problem(404, "not-found")
        etag = f'"{self.version}"'
        if headers.get("if-match", etag) != etag:
            return self._problem(412, "conflict")
        data = self.files[path]
        if "range" not in headers:
            return 200, {"etag": etag}, data
        first, _, last = headers["range"][len("bytes=") :].partition("-")
        if int(first) >= len(data):
            return self._problem(416, "range-not-satisfiable")
        part = data[int(first) : int(last) + 1 if last else None]
        return 206, {"etag": etag, "content-range": f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"}, part
