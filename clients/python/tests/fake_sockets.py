"""The WebSockets of the fake service: a terminal that answers what is typed in capitals, and a tunnel to a port here."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Tuple, Union

from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

if TYPE_CHECKING:
    from fake import Command, Service

#: Messages after which each next connection is cut: one number for each, none where the list is over.
cuts: List[int] = []


class Socket:
    """One connection, cut when its number of messages is over."""

    def __init__(self, protocol: ServerProtocol, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.protocol, self.reader, self.writer = protocol, reader, writer
        self.left: Optional[int] = cuts.pop(0) if cuts else None

    def _count(self) -> None:
        if self.left is not None:
            if self.left == 0:
                self.writer.transport.abort()
                raise ConnectionResetError
            self.left -= 1

    async def send(self, message: Union[str, bytes]) -> None:
        self._count()
        if isinstance(message, str):
            self.protocol.send_text(message.encode())
        else:
            self.protocol.send_binary(message)
        await self.flush()

    async def flush(self) -> None:
        self.writer.write(b"".join(self.protocol.data_to_send()))
        await self.writer.drain()

    async def receive(self) -> Iterator[Union[str, bytes]]:
        """The messages that have come; `ConnectionError` at the end."""
        data = await self.reader.read(65536)
        if not data:
            raise ConnectionResetError
        self.protocol.receive_data(data)
        out: List[Union[str, bytes]] = []
        for event in self.protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY):
                self._count()
                text = event.opcode is Opcode.TEXT
                out.append(bytes(event.data).decode() if text else bytes(event.data))
            elif isinstance(event, Frame) and event.opcode is Opcode.CLOSE:
                await self.flush()
                raise ConnectionResetError
        await self.flush()
        return iter(out)


async def serve(service: "Service", target: str, head: bytes, reader: Any, writer: Any) -> None:
    protocol = ServerProtocol(max_size=None)
    protocol.receive_data(head)
    (request,) = protocol.events_received()
    protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
    socket = Socket(protocol, reader, writer)
    await socket.flush()
    sandbox = target.split("/")[3]
    if target.endswith("/stream"):
        await terminal(service, sandbox, socket)
    else:
        await tunnel(socket, int(target.rsplit("/", 1)[1]))


async def terminal(service: "Service", sandbox: str, socket: Socket) -> None:
    record, sent = None, 0
    while True:
        for message in await socket.receive():
            if record is None:
                record, sent = begin(service, sandbox, json.loads(message))
                await socket.send(json.dumps({"event": "started", "id": record.id, "pid": 7}))
            elif isinstance(message, bytes):
                (offset,) = struct.unpack(">Q", message[:8])
                assert offset <= len(record.input), "input with a hole"
                new = message[8 + len(record.input) - offset :]
                record.input += new
                record.out["stdout"] = record.out.get("stdout", b"") + new.upper()
            elif "resize" in message:
                size = json.loads(message)["resize"]
                record.out["stdout"] = record.out.get("stdout", b"") + f"[{size['rows']}x{size['columns']}]".encode()
        if record is None:
            continue
        out = record.out.get("stdout", b"")
        while sent < len(out):
            piece = out[sent : sent + 5]
            await socket.send(struct.pack(">BQ", 1, sent) + piece)
            sent += len(piece)
        if b"exit" in record.input:
            record.exit_code = 0
            await socket.send(json.dumps({"event": "ended", **service._result(record, False)}))


def begin(service: "Service", sandbox: str, first: Any) -> "Tuple[Command, int]":
    """The record that a first message names, and from where on its output is wanted."""
    if "attach" in first:
        return service.commands[(sandbox, first["attach"]["id"])], first["attach"]["stdout_from"]
    body = first["start"]
    record = service.commands.get((sandbox, body["id"]))
    if record is None:
        record = service._run(sandbox, body["id"], {"command": "cat"})
    return record, 0


async def tunnel(socket: Socket, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def back() -> None:
        while True:
            data = await reader.read(65536)
            if not data:
                socket.protocol.send_close()
                await socket.flush()
                return
            await socket.send(data)

    task = asyncio.ensure_future(back())
    try:
        while True:
            for message in await socket.receive():
                if message == b"":
                    writer.write_eof()
                else:
                    writer.write(message)  # type: ignore[arg-type]
    finally:
        task.cancel()
        writer.close()
