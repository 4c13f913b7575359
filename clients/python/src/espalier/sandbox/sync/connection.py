# Made of aio/connection.py by clients/python/generate.py; change that, not this.
"""The way of one call: sent, and sent again with the same id while that may help and cannot act twice."""

from __future__ import annotations

import secrets
import ssl
from dataclasses import replace
from typing import Optional, Union

from ..core.calls import Calls
from ..core.requests import Request, Response, called
from ..core.retry import Attempts, Cut, Policy
from ..core.settings import SILENCE_SECONDS, Settings
from ..errors import ApiError, ConnectionFailed, api_error
from .io import Answer, Http, Socket, Transport, now, sleep


class Connection:
    """To one service, with one key, as one session."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        calls: Calls,
        verify: Union[bool, ssl.SSLContext],
        transport: Optional[Transport],
    ) -> None:
        self.settings, self.policy, self.calls, self.verify = settings, policy, calls, verify
        self.http = Http(settings, verify, transport)
        self._reached = False

    def attempts(self, within: Optional[float] = None) -> Attempts:
        """Of a call that begins; `within`: seconds, where they are fewer than the client's."""
        policy = self.policy
        if within is not None:
            policy = replace(policy, reconnect_within=min(within, policy.reconnect_within))
        return Attempts(policy, self._reached)

    def call(self, request: Request, within: Optional[float] = None) -> Response:
        """The answer, below 400. `ApiError` or `ConnectionFailed` when trying again does not help."""
        attempts = self.attempts(within)
        request.headers.setdefault("x-request-id", secrets.token_hex(8))
        while True:
            failure: Union[Cut, ApiError]
            try:
                response = self.http.send(request)
                self._reached = True
                if response.status < 400:
                    return Response(response.status, response.headers, response.body, attempts.made + 1)
                failure = api_error(response.status, response.headers, response.body)
            except Cut as cut:
                failure = cut
            sleep(attempts.delay(failure, now(), request.repeatable))

    def open(self, request: Request, attempts: Attempts, silence: float = SILENCE_SECONDS) -> Optional[Answer]:
        """The begin of an answer that is read piece by piece; None where it is to be tried again, after the pause was made."""
        request.headers.setdefault("x-request-id", secrets.token_hex(8))
        failure: Union[Cut, ApiError]
        try:
            answer = self.http.open(request, silence)
            self._reached = True
            if answer.status < 400:
                return answer
            try:
                failure = api_error(answer.status, answer.headers, answer.rest(1 << 20))
            finally:
                answer.close()
        except Cut as cut:
            failure = cut
        sleep(attempts.delay(failure, now(), request.repeatable))
        return None

    def change(self, sandbox: str, request: Request) -> Response:
        """A call that changes something in a sandbox, by an id of its own."""
        call = self.calls.allot(sandbox)
        try:
            return self.call(called(request, call, self.calls.floor(sandbox)))
        except ConnectionFailed as error:
            error.of("call", str(call))
            raise
        finally:
            self.calls.settle(sandbox, call)

    def socket(self, path: str, attempts: Attempts) -> Optional[Socket]:
        """A WebSocket; None where it is to be tried again."""
        failure: Union[Cut, ApiError]
        try:
            socket = Socket.open(self.settings, path, self.verify)
            self._reached = True
            return socket
        except (Cut, ApiError) as error:
            failure = error
        sleep(attempts.delay(failure, now()))
        return None

    def close(self) -> None:
        self.http.close()
