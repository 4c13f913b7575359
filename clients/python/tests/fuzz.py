"""Every operation of the service's own description, with thousands of requests that it did not think of.

`python tests/fuzz.py URL KEY [CASES]` runs schemathesis (the extra `fuzz`) until at least CASES (2,000) requests were made: no
answer of 500 or above but 501 and 503, and none outside the description. Paths get real names, so that what they name is there.
Exits with 1 where something is found. The key should be of its own: what has it is deleted.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from typing import Any, Dict, List

import httpx
import schemathesis
from espalier import SandboxClient
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.core.failures import Failure, FailureGroup

#: Seconds that one request may take.
REQUEST_SECONDS = 30
#: Operations whose answers are not of this service, or that are not requests of their own.
LEFT_OUT = ("/ports/", "/tunnels/", "/stream", "/exec/pty")


#: Ends of what 32 and 64 bits and a double hold, and beyond; in JSON an exponent makes a float.
NUMBERS: List[Any] = [
    -(1 << 63) - 1, -(1 << 63), -(1 << 31) - 1, -1, 0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -1.7976931348623157e308, -0.0, 5e-324, 1e-9, 1e19, 1.7976931348623157e308,
]  # fmt: skip
TEXTS: List[Any] = [
    "", " ", "\0", "a" * 200, "a" * 70_000, "/" * 5_000, "\u202e\uffff\U0010ffff", "..", "18446744073709551615",
    "18446744073709551616GiB", "99999999999999999999999999s", "1e999", "-1", "\n",
]  # fmt: skip


def extremes(schema: Any, root: Dict[str, Any]) -> List[Any]:
    """What a value of this schema is set to."""
    seen: List[Any] = []
    for form in forms(schema, root):
        kinds = form.get("type")
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind in ("integer", "number"):
                seen += NUMBERS
            elif kind == "string":
                seen += TEXTS
            elif kind == "array":
                seen += [[value] * 300 for value in ("", "a:1", 1)] + [[None], [["x"]]]
            elif kind == "object":
                seen += [{name: value} for name in ("", "a", "/a", "a" * 5_000) for value in ("", "a" * 70_000, 1 << 64)]
    return seen


def forms(schema: Any, root: Dict[str, Any]) -> List[Dict[str, Any]]:
    """A schema, or each that it may be."""
    if "$ref" in schema:
        schema = root["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    several = [*schema.get("oneOf", []), *schema.get("anyOf", []), *schema.get("allOf", [])]
    return [form for each in several for form in forms(each, root)] if several else [schema]


#: One rollout that needs no model: what its group and events are asked for is there.
EXPERIMENT: Dict[str, Any] = {
    "name": "fuzz",
    "tasks": {"source": "tasks.jsonl"},
    "harness": {"plugin": "idle"},
    "rewards": [{"plugin": "environment-reward"}],
}


def a_run(url: str, key: str) -> str:
    """The id of a run; of none where the plugins are not built, whose routes then answer 404."""
    body = {"experiment": EXPERIMENT, "tasks": json.dumps({"id": "one", "instruction": "go"}) + "\n"}
    answer = httpx.post(f"{url}/v1/runs", json=body, headers={"x-api-key": key}, timeout=60)
    return str(answer.json()["run_id"]) if answer.is_success else "fuzz-00000000"


class Names:
    """What is there to be named, made again when a case has taken it away."""

    def __init__(self, url: str, key: str) -> None:
        self.client = SandboxClient(url, key, reconnect_within=10)
        self.run = a_run(url, key)
        self.values: Dict[str, str] = {}
        self.renew()

    def renew(self) -> None:
        for sandbox in self.client.list_sandboxes(state="running"):
            if sandbox.id != self.values.get("sandbox"):
                sandbox.delete()
        for checkpoint in self.client.list_checkpoints():
            if checkpoint.id != self.values.get("checkpoint"):
                self.client.delete_checkpoint(checkpoint.id)
        sandbox = self.client.create_sandbox(files={"/root/file": "text"}, memory="256MiB", idle_s=600)
        command = sandbox.start("cat", stdin_open=True, timeout=600)
        self.values = {
            "sandbox": sandbox.id,
            "checkpoint": sandbox.checkpoint().id,
            "command": command.id,
            "shell": sandbox.shell().id,
            "job": f"{sandbox.id}.{command.id}",
            "run": self.run,
            "group": f"{self.run}.g0",
        }

    def alive(self) -> bool:
        try:
            sandbox = self.client.get_sandbox(self.values["sandbox"])
            sandbox.get_job(self.values["command"])
            self.client.get_checkpoint(self.values["checkpoint"])
            return sandbox.info.state == "running" and not sandbox.list_shells()[0]["ended"]
        except Exception:
            return False

    def of(self, path: str, name: str) -> str:
        before = path[: path.index("{" + name)]
        for end, value in [
            ("checkpoints/", "checkpoint"), ("sandboxes/", "sandbox"), ("commands/", "command"), ("shells/", "shell"),
            ("jobs/", "job"), ("runs/", "run"), ("groups/", "group"),
        ]:  # fmt: skip
            if before.endswith(end):
                return self.values[value]
        return "8000"


def checks() -> List[CheckFunction]:
    from schemathesis.specs.openapi import checks as of_openapi

    return [
        of_openapi.status_code_conformance,
        of_openapi.content_type_conformance,
        of_openapi.response_schema_conformance,
        of_openapi.response_headers_conformance,
    ]


class Hunt:
    """All requests of one run, and what was wrong with their answers."""

    def __init__(self, url: str, key: str) -> None:
        self.key, self.names = key, Names(url, key)
        self.found: Dict[str, List[str]] = {}
        self.statuses: "Counter[int]" = Counter()
        self.made = 0

    def operation(self, operation: Any, number: int, count: int) -> None:
        """So many requests of one operation: as described, and every third as not described."""
        self.some(operation, number, count - count // 3, GenerationMode.POSITIVE)
        if operation.body or operation.query or operation.path_parameters:
            self.some(operation, number, count // 3, GenerationMode.NEGATIVE)

    def some(self, operation: Any, number: int, count: int, mode: GenerationMode) -> None:

        @seed(number)
        @settings(
            max_examples=count, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case: Any) -> None:
            self.one(operation, case)

        try:
            run()
        except Unsatisfiable:
            # Nothing can be said wrongly here.
            pass

    def one(self, operation: Any, case: Any) -> None:
        self.made += 1
        if self.made % 5 == 0 and not self.names.alive():
            self.names.renew()
        # Three of four requests name what is there.
        for name in list(case.path_parameters or {}):
            if self.made % 4:
                case.path_parameters[name] = self.names.of(operation.path, name)
        # Nobody waits for long here.
        if case.query is None:
            case.query = {}
        query = case.query if isinstance(case.query, dict) else {}
        if operation.path.endswith("/wait"):
            query.setdefault("timeout" if operation.path.startswith(("/sandboxes", "/jobs")) else "timeout_s", 1)
        for wait in ("wait_s", "timeout_s", "timeout"):
            if isinstance(query.get(wait), (int, float)) and query[wait] > 2:
                query[wait] = 1
        if isinstance(case.body, dict):
            if "image" in case.body and self.made % 2:
                case.body["image"] = "host"
            for wait in ("wait_s", "timeout_s", "timeout_seconds"):
                if isinstance(case.body.get(wait), (int, float)) and not 0 < case.body[wait] <= 2:
                    case.body[wait] = 1
        label = f"{operation.method.upper()} {operation.path}"
        for problem in tried(case, self.key, self.statuses):
            self.found.setdefault(f"{label}: {problem.splitlines()[0]}", []).append(problem)


    def to_extremes(self, url: str) -> None:
        """Every number and text of every operation, one at a time; the rest of the request is as small as may be."""
        root = httpx.get(f"{url}/openapi.json").json()
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {self.key}"}, timeout=REQUEST_SECONDS) as client:
            for path, item in root["paths"].items():
                for method in ("get", "put", "post", "delete", "patch"):
                    if method in item and not any(part in path for part in LEFT_OUT):
                        self.operation_to_extremes(client, root, method, path, item[method])

    def operation_to_extremes(self, client: httpx.Client, root: Dict[str, Any], method: str, path: str, about: Dict[str, Any]) -> None:
        body_schema = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        (form,) = forms(body_schema, root)[:1] if body_schema else [{}]
        properties = form.get("properties", {})
        smallest = {"image": "host", "command": "true", "path": "/root/other", "patch": "", "content": "", "from": "/a", "to": "/b", "signal": 0}
        body = {name: smallest[name] for name in form.get("required", []) if name in smallest}
        query = {"path": "/root/file"} if any(each["name"] == "path" and each["in"] == "query" for each in about.get("parameters", [])) else {}
        label = f"{method.upper()} {path}"
        for each in about.get("parameters", []):
            if each["in"] == "query":
                for value in extremes(each["schema"], root):
                    if not isinstance(value, (dict, list)) and len(str(value)) < 60_000:
                        self.extreme(client, label, method, path, {**query, each["name"]: value}, body if body_schema else None)
        for name, schema in properties.items():
            for value in extremes(schema, root):
                self.extreme(client, label, method, path, query, {**body, name: value})

    def extreme(self, client: httpx.Client, label: str, method: str, path: str, query: Dict[str, Any], body: Any) -> None:
        self.made += 1
        if self.made % 20 == 0 and not self.names.alive():
            self.names.renew()
        at = re.sub(r"\{(\w+)\}", lambda found: self.names.of(path, found.group(1)), path)
        # Nobody waits for long here, where a wait is not what is looked at.
        waits = [each for each in ("wait_s", "timeout_s", "timeout") if isinstance(query.get(each), (int, float))]
        query = {**query, **{each: min(query[each], 1) if query[each] <= 3600 else query[each] for each in waits}}
        if path == "/v1/sandboxes" and method == "post":
            query.setdefault("wait_s", 0)
        if isinstance(body, dict) and path.endswith(("/commands", "/exec")):
            body = {**body, **({} if "wait_s" in body or path.endswith("/exec") else {"wait_s": 1})}
        said = f"{label} {str(query)[:200]} {str(body)[:300]}"
        try:
            answer = client.request(method, at, params=query, json=body)
            self.statuses[answer.status_code] += 1
            if answer.status_code >= 500 and answer.status_code not in (501, 503, 507):
                self.found.setdefault(f"{label}: status {answer.status_code}", []).append(f"{said}\n{answer.content[:500].decode('utf-8', 'replace')}")
            metrics = client.get("/metrics")
            if metrics.status_code != 200:
                self.found.setdefault(f"/metrics after {label}: {metrics.status_code}", []).append(said)
        except httpx.HTTPError as error:
            self.found.setdefault(f"{label}: no answer", []).append(f"{said}\n{type(error).__name__} {error}")


def main() -> int:
    url, key = sys.argv[1], sys.argv[2]
    wanted = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations()]
    operations = [each for each in operations if not any(part in each.path for part in LEFT_OUT)]
    hunt, began = Hunt(url, key), time.monotonic()
    rounds = 0
    # Hypothesis stops early where an operation has few cases; others are then asked more.
    while hunt.made < wanted and rounds < 10:
        count = -(-(wanted - hunt.made) // len(operations)) + 5
        for number, operation in enumerate(operations):
            hunt.operation(operation, rounds * 1000 + number, count)
            if not hunt.names.alive():
                hunt.names.renew()
        rounds += 1
    hunt.to_extremes(url)
    hunt.names.client.cleanup_all()
    seconds = time.monotonic() - began
    statuses = dict(sorted(hunt.statuses.items()))
    print(f"{hunt.made} requests over {len(operations)} operations in {seconds:.0f} s; statuses {statuses}")
    for title, examples in hunt.found.items():
        print(f"\n{len(examples)} x {title}\n{examples[0][:1500]}")
    return 1 if hunt.found or hunt.made < wanted else 0


def tried(case: Any, key: str, statuses: "Counter[int]") -> List[str]:
    """Sends one case; what is wrong with its answer."""
    try:
        answer = case.call(headers={"authorization": f"Bearer {key}"}, timeout=REQUEST_SECONDS)
    except Exception as error:
        return [f"no answer: {type(error).__name__}\n{error}"]
    statuses[answer.status_code] += 1
    said = f"{case.method} {answer.request.url}\nbody {case.body!r}\nanswer {answer.status_code} {answer.content[:500].decode('utf-8', 'replace')}"
    if answer.status_code >= 500 and answer.status_code not in (501, 503, 507):
        return [f"status {answer.status_code}\n{said}"]
    try:
        case.validate_response(answer, checks=checks())
    except FailureGroup as group:
        return [f"{type(each).__name__}: {each.title}\n{each}\n{said}" for each in group.exceptions]
    except Failure as failure:
        return [f"{type(failure).__name__}: {failure.title}\n{failure}\n{said}"]
    return []


if __name__ == "__main__":
    sys.exit(main())
