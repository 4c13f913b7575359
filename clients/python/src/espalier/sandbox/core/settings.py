"""Where the service is and how it is spoken to: from parameters, else from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, Optional
from urllib.parse import urlsplit

#: Seconds for an answer, beyond what the service was asked to wait.
ANSWER_SECONDS = 60.0
#: Seconds of silence in a stream; the service says something every 15.
SILENCE_SECONDS = 45.0
#: Seconds that the service is asked to wait at once for an end; longer waits are several such calls.
WAIT_SECONDS = 30.0
#: Seconds that the service may take for forks and checkpoints, whose requests name no wait.
MAKE_SECONDS = 600.0
#: Seconds for ending what nobody will have, when the caller is cancelled or interrupted.
LAST_SECONDS = 5.0
#: Seconds to connect.
CONNECT_SECONDS = 10.0
#: Bytes of an answer that is read as a whole.
ANSWER_BYTES_MAX = 256 << 20


@dataclass(frozen=True)
class Settings:
    """Of one client."""

    base_url: str
    api_key: Optional[str]
    #: Connections at once.
    connections: int = 1000
    #: A Unix socket to connect to, whatever host the URL names.
    socket: Optional[str] = None

    @staticmethod
    def of(base_url: Optional[str], api_key: Optional[str], connections: int) -> "Settings":
        """`ValueError` where no service is named."""
        url = (base_url or os.environ.get("ESPALIER_URL") or "").rstrip("/")
        if not url:
            raise ValueError("no service: give base_url, or set ESPALIER_URL (such as http://127.0.0.1:8700)")
        if url.startswith("unix:"):
            return Settings("http://localhost", api_key or os.environ.get("ESPALIER_API_KEY"), connections, url[len("unix:") :])
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"base_url {url!r}: one is http://HOST:PORT, https://HOST or unix:PATH")
        return Settings(url, api_key or os.environ.get("ESPALIER_API_KEY"), connections)

    def headers(self) -> Dict[str, str]:
        """Of every request."""
        from ... import __version__

        headers = {"user-agent": f"espalier-python/{__version__}", "accept-encoding": "identity"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers

    def socket_url(self, path: str) -> str:
        """The same service, for a WebSocket."""
        if self.socket is not None:
            raise ValueError(f"unix:{self.socket}: WebSockets need a service at http://HOST:PORT or https://HOST")
        return "ws" + self.base_url[len("http") :] + path
