"""Commands through the servers that SWE-ReX and ROCK put into a sandbox (PyPI `swe-rex`, `rl-rock[rocklet]`).

The peers of `sandbox` in this folder's bench: each server as installed, started on loopback, without any isolation of its own;
`bash -c true` through `/execute`, then `true` in a bash session, one after the other over one connection.

Prints one JSON object for each server: medians and 99th percentiles in ms, resident memory in MiB.
"""

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

# Module with its arguments, and what its requests have beside what both take.
SERVERS = {
    "SWE-ReX": (["swerex.server", "--auth-token", "peer"], {}),
    "rocklet": (["rock.rocklet.server"], {"sandbox_id": "peer"}),
}
WAIT_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


class Caller:
    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def post(self, path: str, body: dict) -> dict:
        headers = {"content-type": "application/json", "x-api-key": "peer"}
        self.connection.request("POST", path, json.dumps(body), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {text[:300]!r}")
        return json.loads(text)

    def is_alive(self) -> bool:
        try:
            self.connection.request("GET", "/is_alive", headers={"x-api-key": "peer"})
            return self.connection.getresponse().read() is not None
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return False


def times(calls: int, call) -> list[float]:
    for _ in range(10):
        call()
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1e3)
    return sorted(taken)


def measure(name: str, arguments: list[str], extra: dict, calls: int) -> dict:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "ROCK_LOGGING_PATH": folder}
        began = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, "-m", *arguments, "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            caller = Caller(port)
            while not caller.is_alive():
                if server.poll() is not None or time.perf_counter() - began > WAIT_S:
                    raise RuntimeError(f"{name} did not come up")
                time.sleep(0.02)
            start_s = time.perf_counter() - began
            execute_body = {"command": ["bash", "-c", "true"], **extra}
            execute = times(calls, lambda: caller.post("/execute", execute_body))
            session = {"session": "peer", "session_type": "bash", **extra}
            caller.post("/create_session", session)
            action = {"session": "peer", "action_type": "bash", "command": "true", "timeout": 30, **extra}
            in_session = times(min(calls, 50), lambda: caller.post("/run_in_session", action))
            memory = resident_mib(server.pid)
        finally:
            server.kill()
            server.wait()
    return {
        "peer": name,
        "start_s": round(start_s, 2),
        "execute_ms": round(statistics.median(execute), 3),
        "execute_p99_ms": round(execute[len(execute) * 99 // 100], 3),
        "session_ms": round(statistics.median(in_session), 3),
        "resident_mib": round(memory, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    for name, (arguments, extra) in SERVERS.items():
        print(json.dumps(measure(name, arguments, extra, options.calls)), flush=True)


if __name__ == "__main__":
    main()
