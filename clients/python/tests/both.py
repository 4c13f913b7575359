"""One test for both clients: the one for asyncio behind a face that blocks."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import Any, Callable

from espalier.delivery import AsyncGroupReader, GroupReader
from espalier.sandbox import AsyncSandboxClient, SandboxClient
from espalier.tasks import AsyncTaskClient, TaskClient

KINDS = ["sync", "async"]


class Loop:
    """Where the asyncio client lives."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(120)

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """In the loop's thread: some methods start tasks."""

        async def go() -> Any:
            value = function(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value

        return asyncio.run_coroutine_threadsafe(go(), self.loop).result(120)


class Blocking:
    """An object of the asyncio client, used as its twin for threads is."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self.__dict__.update(_loop=loop, _inner=inner)

    def _face(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._face(each) for each in value]
        if type(value).__name__.startswith("Async") or inspect.isasyncgen(value):
            return Blocking(self._loop, value)
        return value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, "aclose" if name == "close" and hasattr(self._inner, "aclose") else name)
        if not callable(value):
            return self._face(value)
        return lambda *args, **kwargs: self._face(self._loop.call(value, *args, **kwargs))

    def __enter__(self) -> Any:
        return self._face(self._loop.run(self._inner.__aenter__()))

    def __exit__(self, *error: Any) -> None:
        self._loop.run(self._inner.__aexit__(*error))

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            return self._face(self._loop.run(self._inner.__anext__()))
        except StopAsyncIteration:
            raise StopIteration from None


_LOOP = Loop()


def client(kind: str, url: str, key: str, **more: Any) -> Any:
    """A client of either kind."""
    if kind == "sync":
        return SandboxClient(url, key, **more)

    async def make() -> Any:
        return AsyncSandboxClient(url, key, **more)

    return Blocking(_LOOP, _LOOP.run(make()))


def reader(kind: str, run: str, **more: Any) -> Any:
    """A reader of groups of either kind."""
    if kind == "sync":
        return GroupReader(run, **more)

    async def make() -> Any:
        return AsyncGroupReader(run, **more)

    return Blocking(_LOOP, _LOOP.run(make()))


def tasks(kind: str, run: str, **more: Any) -> Any:
    """A client for tasks of either kind."""
    more = {"base_url": "http://service", "api_key": "key", **more}
    if kind == "sync":
        return TaskClient(run, **more)

    async def make() -> Any:
        return AsyncTaskClient(run, **more)

    return Blocking(_LOOP, _LOOP.run(make()))


def until(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether it holds before so many seconds are over."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
