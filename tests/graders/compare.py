"""Holds the project's readers of test logs against two others: PyPI's swebench, and the reports that pytest itself writes.

    python compare.py --reader PROGRAM --pytest VERSION=PYTHON ... [--jest FILE] [--seed N]

Run by an interpreter that has `swebench` (without its dependencies: those that only its other parts use are stood in for). Prints
what was compared; ends with 1 when any difference is unexplained, or fewer than 300 logs were made.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import logs as logs_of
import standin

LOGS_MIN = 300
STATUSES = {"PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"}
PARSERS = {
    "swebench-pytest": "parse_log_pytest",
    "swebench-pytest-options": "parse_log_pytest_options",
    "swebench-pytest-v2": "parse_log_pytest_v2",
    "swebench-matplotlib": "parse_log_matplotlib",
    "swebench-seaborn": "parse_log_seaborn",
    "swebench-sympy": "parse_log_sympy",
    "django": "parse_log_django",
    "swebench-go-test": "parse_log_gotest",
    "swebench-cargo-test": "parse_log_cargo",
    "swebench-jest": "parse_log_jest",
    "swebench-vitest": "parse_log_vitest",
    "swebench-tap": "parse_log_tap",
}

standin.install()

from swebench.harness import grading  # noqa: E402
from swebench.harness.log_parsers import PARSER_REGISTRY  # noqa: E402
from swebench.types import TestSpec  # noqa: E402


def referee(form, log, expected, scratch):
    """swebench's own answer: whether the log is valid, its tests, the resolution."""
    registry = dict(PARSER_REGISTRY)
    name = PARSERS[form]
    if name not in registry:
        from swebench.harness import log_parsers

        registry[name] = getattr(log_parsers, name)
    spec = TestSpec("i", "", [], "r", "1", expected["fail_to_pass"], expected["pass_to_pass"], log_parser=name, eval_type="pass_and_fail")
    file = scratch / "log"
    file.write_text(log.marked(), encoding="utf-8", newline="")
    try:
        tests, valid = grading.get_logs_eval(spec, str(file))
    except IndexError:
        return None
    gold = {"FAIL_TO_PASS": spec.FAIL_TO_PASS, "PASS_TO_PASS": spec.PASS_TO_PASS}
    report = grading.get_eval_tests_report(tests, gold)
    resolution = grading.get_resolution_status(report) if valid else "RESOLVED_NO"
    return valid, tests, resolution.replace("RESOLVED_", "")


def draw_expected(draw, names):
    """Some of the tests there are, some that are not, some names cut in their parameters."""
    def some():
        chosen = draw.sample(names, min(len(names), draw.choice([0, 1, 1, 2, 5, 50])))
        if draw.random() < 0.1:
            chosen.append("no::such")
        return [name[: name.index("[") + 2] if "[" in name and draw.random() < 0.1 else name for name in chosen]

    return {"fail_to_pass": some(), "pass_to_pass": some()}


class Reader:
    """The project's reader, all cases in one go."""

    def __init__(self, program):
        self.program, self.cases = program, []

    def ask(self, kind, text, marked, expected=None):
        expected = expected or {"fail_to_pass": [], "pass_to_pass": []}
        self.cases.append({"kind": kind, "text": text, "marked": marked, "expected": expected})
        return len(self.cases) - 1

    def answers(self):
        lines = "".join(json.dumps(case) + "\n" for case in self.cases)
        done = subprocess.run([self.program], input=lines.encode("utf-8", "replace"), stdout=subprocess.PIPE, check=True)
        return [json.loads(line) for line in done.stdout.decode().splitlines()]


def difference(ours, theirs):
    """None, or (kind of difference, explained)."""
    valid, tests, resolution = theirs
    known = {name: status for name, status in tests.items() if status in STATUSES}
    if (ours["invalid"] is None) != valid:
        # A summary such as `Tests: 3 passed` makes a log without any test valid there; a line such as `ERROR: x` is a test there.
        if valid and not known and ours["invalid"] == "no test was reported" and resolution != "FULL":
            return "valid without any test", True
        if valid and not known:
            return "full score without any test", True
        return f"valid {valid}, ours {ours['invalid']}", False
    if not valid:
        return None
    if ours["tests"] != known:
        theirs_only = {k: v for k, v in known.items() if ours["tests"].get(k) != v}
        ours_only = {k: v for k, v in ours["tests"].items() if known.get(k) != v}
        # The other status of a name that a line like `ERROR: name` took over there.
        if not theirs_only and all(name in tests for name in ours_only):
            return "a word that is not a status took a test over", True
        return f"tests {list(theirs_only.items())[:3]} / {list(ours_only.items())[:3]}", False
    if ours["resolution"] != resolution:
        return f"resolution {resolution}, ours {ours['resolution']}", False
    return None


def truth(report):
    """Tests of pytest's report by node id, read by Python's own XML reader."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file, name, classname = case.get("file") or "", case.get("name"), case.get("classname") or ""
        if not file.endswith(".py") or not name:
            continue
        inner = classname[len(file[:-3].replace("/", ".")) :].strip(".")
        node = "::".join([file, *filter(None, inner.split(".")), name])
        if not classname and name == file[:-3].replace("/", "."):
            node = file  # it could not be collected
        status = "PASSED"
        for child in case:
            new = {"failure": "FAILED", "error": "ERROR", "skipped": "XFAIL" if child.get("type") == "pytest.xfail" else "SKIPPED"}.get(child.tag)
            order = ["PASSED", "XFAIL", "SKIPPED", "ERROR", "FAILED"]
            if new:
                status = max(status, new, key=order.index)
        found.setdefault(node, status)
        found[node] = max(found[node], status, key=["PASSED", "XFAIL", "SKIPPED", "ERROR", "FAILED"].index)
    return found


def differs_from_truth(log, ours, real):
    """What the lines of a run say otherwise than its report. Only runs whose lines name each test are asked."""
    wrong = {}
    for node, status in real.items():
        said = ours["tests"].get(node)
        same = said == status
        # The report knows no unexpected pass; the summary does not name what was skipped.
        same = same or (said == "XPASS" and status == "PASSED") or (status == "SKIPPED" and said is None)
        # The report says once what ended twice: in the call and in the teardown.
        same = same or {said, status} == {"FAILED", "ERROR"}
        if not same:
            wrong[node] = (status, said)
    return wrong


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--reader", required=True)
    options.add_argument("--pytest", action="append", default=[])
    options.add_argument("--jest")
    options.add_argument("--seed", type=int, default=9)
    options = options.parse_args()
    draw = random.Random(options.seed)
    print(f"seed {options.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="espalier-graders-") as folder:
        scratch = Path(folder)
        made, real = logs_of.all_logs(scratch, dict(pair.split("=", 1) for pair in options.pytest), options.jest, options.seed)
        reader, asked, reports = Reader(options.reader), [], []
        refused = 0
        for log in made:
            for form in filter(PARSERS.get, log.forms):
                first = referee(form, log, {"fail_to_pass": [], "pass_to_pass": []}, scratch)
                if first is None:
                    refused += 1
                    continue
                names = sorted(name for name, status in first[1].items() if status in STATUSES)
                for _ in range(2):
                    expected = draw_expected(draw, names)
                    theirs = referee(form, log, expected, scratch)
                    asked.append((log, form, theirs, reader.ask(form, log.marked(), True, expected)))
            if log.report:
                try:
                    expected = truth(log.report)
                except ElementTree.ParseError:
                    continue
                names_all = "-v" in log.name or "rA" in log.name or log.name.endswith(("classic", "colour", "xdist", "count"))
                text = reader.ask("pytest", log.output, False) if names_all else None
                reports.append((log, expected, text, reader.ask("junit-xml", log.report.read_text(), False)))
        answers = reader.answers()
    return report_differences(made, real, asked, reports, answers, refused)


def report_differences(made, real, asked, reports, answers, refused):
    explained, unexplained = Counter(), []
    for log, form, theirs, number in asked:
        found = difference(answers[number], theirs)
        if found and found[1]:
            explained[found[0]] += 1
        elif found:
            unexplained.append(f"{log.name} by {form}: {found[0]}")
    for log, expected, text, xml in reports:
        if answers[xml]["tests"] != answers[xml]["tests"] | expected:
            wrong = {k: (v, answers[xml]["tests"].get(k)) for k, v in expected.items() if answers[xml]["tests"].get(k) != v}
            unexplained.append(f"{log.name}: report {list(wrong.items())[:3]}")
        if text is not None and (wrong := differs_from_truth(log, answers[text], expected)):
            unexplained.append(f"{log.name}: lines and report {list(wrong.items())[:3]}")
    distinct = len({log.output for log in made})
    print(f"{real} logs by running tests, {len(made) - real} odd ones; {distinct} different")
    print(f"{len(asked)} readings and grades against swebench, {len(reports)} reports of pytest against Python's XML reader")
    if refused:
        print(f"{refused} readings at which swebench itself raised an error")
    for reason, count in explained.items():
        print(f"explained, {count}: {reason}")
    for line in unexplained[:40]:
        print(f"UNEXPLAINED {line}")
    print(f"{len(unexplained)} unexplained differences")
    return 1 if unexplained or real < LOGS_MIN else 0


if __name__ == "__main__":
    sys.exit(main())
