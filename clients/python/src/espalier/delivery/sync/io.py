"""Work ahead of whoever takes what it makes, by a thread of its own."""

from __future__ import annotations

import queue
import threading
from typing import Callable, Generic, Optional, TypeVar, Union

T = TypeVar("T")

#: Seconds for what is being made when it is stopped.
STOP_SECONDS = 10.0


class _Work(Generic[T]):
    """One thread, until it is stopped, fails or is at the end."""

    def __init__(self, produce: Callable[[], Optional[T]], size: int) -> None:
        self._produce = produce
        self.free = threading.Semaphore(size)
        self.made: "queue.SimpleQueue[Union[T, Exception, None]]" = queue.SimpleQueue()
        self.stopped = False
        self.thread = threading.Thread(target=self._run, name="espalier prefetch", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            self.free.acquire()
            if self.stopped:
                return
            made: Union[T, Exception, None]
            try:
                made = self._produce()
            except Exception as error:
                made = error
            self.made.put(made)
            if made is None or isinstance(made, Exception):
                return


class Prefetch(Generic[T]):
    """Makes items ahead, so many at most; None is the end. After an end or a failure the next `get` begins again."""

    def __init__(self, produce: Callable[[], Optional[T]], size: int) -> None:
        self._produce, self._size = produce, size
        self._work: Optional[_Work[T]] = None

    def get(self) -> Optional[T]:
        """The next item; raises what making it has raised."""
        if self._size == 0:
            return self._produce()
        if self._work is None:
            self._work = _Work(self._produce, self._size)
        made = self._work.made.get()
        self._work.free.release()
        if made is None or isinstance(made, Exception):
            # It was the thread's last.
            self._work = None
        if isinstance(made, Exception):
            raise made
        return made

    def stop(self) -> None:
        """What was made is dropped; what is being made is awaited for `STOP_SECONDS`."""
        if self._work is not None:
            self._work.stopped = True
            self._work.free.release()
            self._work.thread.join(STOP_SECONDS)
        self._work = None
