"""The long-running processes of the demo: each in a session of its own, known by a file, so that the next start ends what the last one left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Dict, List, Optional

#: Until a process that was asked to end is killed.
GRACE_S = 25.0
TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A process did not do what it was started for: what is said to the user."""


class Process:
    """A program in the background; its output goes to `NAME.log`, its id to `NAME.pid`, both in the folder."""

    def __init__(self, name: str, command: List[object], folder: Path, env: Optional[Dict[str, str]] = None) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._file = folder / f"{name}.pid"
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **(env or {})},
            )  # fmt: skip
        self.pid = self._child.pid
        self._file.write_text(json.dumps({"pid": self.pid, "started": started(self.pid)}))

    def code(self) -> Optional[int]:
        """How it ended; None while it runs."""
        return self._child.poll()

    def cpu_s(self) -> float:
        """Processor time that it has used, with what it started and waited for."""
        fields = stat(self.pid)
        return sum(int(field) for field in fields[11:15]) / TICKS if fields else 0.0

    def wait(self, within_s: float) -> Optional[int]:
        """How it ended; None where it did not in time."""
        try:
            return self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Ends it and what it started."""
        if self.code() is None:
            # The engine ends what runs after the first, and at once after the second.
            for grace in (2.0, GRACE_S):
                send(self.pid, signal.SIGTERM)
                if self.wait(grace) is not None:
                    break
        for member in members(self.pid):
            kill(member)
        self.wait(GRACE_S)
        self._file.unlink(missing_ok=True)

    def ended(self) -> str:
        """Why it is not running, for people."""
        code = self.code()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        tail = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"the {self.name} {how}; the end of {self.log}:", *(f"  {line}" for line in tail)])


def end_leftover(folder: Path, name: str) -> None:
    """Ends the process of an earlier start, if it still runs."""
    file = folder / f"{name}.pid"
    if not file.exists():
        return
    known = json.loads(file.read_text() or "{}")
    pid = known.get("pid", 0)
    # Its workers are in its session, and may be there when it is not.
    alive = [member for member in members(pid) if member != pid or started(pid) == known.get("started")] if pid else []
    if alive:
        send(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while members(pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        for member in members(pid):
            kill(member)
    file.unlink(missing_ok=True)


def send(group: int, which: signal.Signals) -> None:
    try:
        os.killpg(group, which)
    except ProcessLookupError:
        pass


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def members(session: int) -> List[int]:
    """Processes of a session that are not yet gone."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        fields = stat(int(path.name))
        if fields and fields[0] != "Z" and int(fields[3]) == session:
            found.append(int(path.name))
    return found


def started(pid: int) -> Optional[str]:
    """When it was started, in ticks since the machine was: with the id it names one process."""
    fields = stat(pid)
    return fields[19] if fields else None


def stat(pid: int) -> List[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, group, session, ...; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
