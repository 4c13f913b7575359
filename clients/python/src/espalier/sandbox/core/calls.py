"""Ids of changing calls: `session.epoch.counter`, counted for each sandbox, with the floor below which none is new.

A call that is repeated with its id never acts twice. The floor tells the service which ids it need not expect any more, so
that it may forget: it lies below the first call that has no answer yet.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from dataclasses import dataclass, field
from typing import Dict, Optional, Set

#: What a session may be called.
SESSION = re.compile(r"[A-Za-z0-9_-]{1,48}")


@dataclass(frozen=True)
class CallId:
    """One changing call of one client in one sandbox."""

    session: str
    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"{self.session}.{self.epoch}.{self.counter}"

    @staticmethod
    def parse(text: str) -> "CallId":
        """`ValueError` where it is no id."""
        session, _, numbers = text.partition(".")
        epoch, _, counter = numbers.partition(".")
        if not (SESSION.fullmatch(session) and epoch.isdigit() and counter.isdigit()) or 0 in (int(epoch), int(counter)):
            raise ValueError(f"not a call id: {text!r}; one is session.epoch.counter")
        return CallId(session, int(epoch), int(counter))


@dataclass
class _Counter:
    next: int = 1
    unanswered: Set[int] = field(default_factory=set)


class Calls:
    """Allots the ids of one client. May be used from several threads."""

    def __init__(self, session: Optional[str] = None, epoch: int = 1) -> None:
        if session is not None and not SESSION.fullmatch(session):
            raise ValueError(f"not a session: {session!r}; at most 48 of A-Z, a-z, 0-9, _ and -")
        if epoch < 1:
            raise ValueError(f"epoch {epoch}; from 1")
        self._given, self._epoch = session, epoch
        # Re-entrant: what is collected while it is held may settle its own call.
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._session = self._given or secrets.token_urlsafe(12)
        self._counters: Dict[str, _Counter] = {}

    def allot(self, sandbox: str) -> CallId:
        """A new id. The caller says `settle` when it is answered or given up."""
        with self._lock:
            # A forked child would count on with the numbers of its parent.
            if self._process != os.getpid() and self._given is None:
                self._begin()
            counter = self._counters.setdefault(sandbox, _Counter())
            number = counter.next
            counter.next += 1
            counter.unanswered.add(number)
            return CallId(self._session, self._epoch, number)

    def settle(self, sandbox: str, call: CallId) -> None:
        """The call has an answer, or will never be made for the first time any more."""
        with self._lock:
            counter = self._counters.get(sandbox)
            if counter and (call.session, call.epoch) == (self._session, self._epoch):
                counter.unanswered.discard(call.counter)

    def floor(self, sandbox: str) -> int:
        """No new id will be sent at or below it."""
        with self._lock:
            counter = self._counters.get(sandbox)
            if counter is None:
                return 0
            return min(counter.unanswered, default=counter.next) - 1

    def forget(self, sandbox: str) -> None:
        """The sandbox is gone."""
        with self._lock:
            self._counters.pop(sandbox, None)
