"""The real service, started by the tests that are given its program in ESPALIER_BIN."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import httpx
import pytest
from espalier import SandboxClient

PROGRAM = os.environ.get("ESPALIER_BIN")
#: For tests of the real service; without it nothing of them is run.
needed = pytest.mark.skipif(PROGRAM is None, reason="ESPALIER_BIN names no service")
#: Seconds in which it starts, ends, or ends what it left.
PATIENCE = 60
#: Services that were ended, in tests that do not wait for the last of them.
LEFT: List["Daemon"] = []


class Daemon:
    """One store and its service, which may be killed and started again at the same place."""

    def __init__(self, *arguments: str, verify: Optional[ssl.SSLContext] = None, environment: Optional[Dict[str, str]] = None) -> None:
        """With `verify` it is reached over TLS."""
        assert PROGRAM is not None
        self.verify: Any = True if verify is None else verify
        self._environment = {**os.environ, **(environment or {})}
        self.folder = Path(tempfile.mkdtemp(prefix="espalier-api-"))
        self.store = self.folder / "store"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"{'http' if verify is None else 'https'}://127.0.0.1:{self.port}"
        self._arguments = list(arguments)
        self.log = self.folder / "log"
        self.process: Optional["subprocess.Popen[bytes]"] = None
        self.start()

    def start(self) -> None:
        """Until it says that it listens."""
        words = [str(PROGRAM), "serve", "--listen", f"127.0.0.1:{self.port}", "--store", str(self.store), *self._arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, env=self._environment, start_new_session=True)
        assert self.process.stdout is not None
        watchdog = threading.Timer(PATIENCE, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        assert line.startswith(b"listening on http"), self.said()
        # Whatever it prints later is not waited for.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def terminate(self) -> None:
        """Asks it to drain and end; does not wait."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def command(self, *words: str) -> str:
        """What a command of the same program prints."""
        run = subprocess.run(
            [str(PROGRAM), *words, "--store", str(self.store)], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    def key(self, name: str, scopes: str = "sandboxes:write,metrics", *quotas: str) -> str:
        """A new key."""
        return self.command("key", "create", name, "--scopes", scopes, *quotas)

    def memory(self) -> int:
        """Resident bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def end(self, keys: List[str]) -> None:
        """Deletes what these keys have, and ends the service. What it leaves for a moment is awaited by `gone`."""
        try:
            if self.process is None or self.process.poll() is not None:
                self.start()
            for key in keys:
                with SandboxClient(self.url, key, reconnect_within=5, verify=self.verify) as client:
                    for sandbox in client.list_sandboxes():
                        sandbox.delete()
            self.terminate()
            assert self.process is not None
            self.process.wait(PATIENCE)
        finally:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
            LEFT.append(self)

    def gone(self) -> bool:
        """Waits until nothing of the store runs any more, and removes it."""
        # Its keeper ends ten seconds after the last sandbox.
        end = time.monotonic() + PATIENCE
        while self._used() and time.monotonic() < end:
            time.sleep(0.2)
        gone = not self._used()
        shutil.rmtree(self.folder, ignore_errors=True)
        return gone

    def _used(self) -> bool:
        """A process, or a mount, still has something of the store."""
        store = str(self.store)
        if store in Path("/proc/mounts").read_text():
            return True
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if store.encode() in (process / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
        return False


def raw(method: str, url: str, key: Optional[str] = None, **more: Any) -> httpx.Response:
    """One request without the client: what it does is looked at by itself."""
    headers = {**({"authorization": f"Bearer {key}"} if key else {}), **more.pop("headers", {})}
    return httpx.request(method, url, headers=headers, timeout=60, **more)
