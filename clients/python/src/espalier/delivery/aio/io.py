"""Work ahead of whoever takes what it makes, by a task of its own."""

from __future__ import annotations

import asyncio
from typing import Awaitable, Callable, Generic, Optional, TypeVar, Union

T = TypeVar("T")


class AsyncPrefetch(Generic[T]):
    """Makes items ahead, so many at most; None is the end. After an end or a failure the next `get` begins again."""

    def __init__(self, produce: Callable[[], Awaitable[Optional[T]]], size: int) -> None:
        self._produce, self._size = produce, size
        self._task: "Optional[asyncio.Task[None]]" = None

    async def get(self) -> Optional[T]:
        """The next item; raises what making it has raised."""
        if self._size == 0:
            return await self._produce()
        if self._task is None:
            self._free = asyncio.Semaphore(self._size)
            self._made: "asyncio.Queue[Union[T, Exception, None]]" = asyncio.Queue()
            self._task = asyncio.ensure_future(self._work())
        made = await self._made.get()
        self._free.release()
        if made is None or isinstance(made, Exception):
            # It was the task's last.
            self._task = None
        if isinstance(made, Exception):
            raise made
        return made

    async def _work(self) -> None:
        while True:
            await self._free.acquire()
            made: Union[T, Exception, None]
            try:
                made = await self._produce()
            except Exception as error:
                made = error
            self._made.put_nowait(made)
            if made is None or isinstance(made, Exception):
                return

    async def stop(self) -> None:
        """Nothing is made any more when it returns; what was made is dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._task = None
