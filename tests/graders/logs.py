"""Makes logs by really running test runners, and odd ones out of them."""

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import suites

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
PYTEST_FORMS = ["swebench-pytest", "swebench-pytest-options", "swebench-pytest-v2", "swebench-matplotlib", "swebench-seaborn"]


@dataclass
class Log:
    """What a runner printed, how it ended, by which forms it is to be read, and its report where it wrote one."""

    name: str
    forms: list
    output: str
    exit_code: int | None = None
    report: Path | None = None

    def marked(self):
        """As an evaluation script leaves it."""
        code = "" if self.exit_code is None else f">>>>> Test Exit Code: {self.exit_code}\n"
        return f"+ git apply -\nApplied cleanly.\n{START}\n{self.output}\n{END}\n{code}"


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run(command, folder, **more):
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root"), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    env.update(more)
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False,
    )
    return done.stdout.decode("utf-8", "replace"), done.returncode


def pytest_logs(scratch, version, python, options):
    """Every suite under every named way of running."""

    def one(pair):
        suite, way = pair
        folder = write(scratch / f"pytest-{version}-{suite}-{way}", suites.PYTEST[suite])
        # The rewriting of asserts in pytest 5 does not know today's Python.
        plain = ["--assert=plain"] if version.startswith("5") else []
        report = folder / "report.xml"
        command = [python, "-m", "pytest", *suites.PYTEST_OPTIONS[way], *plain, f"--junitxml={report}", "-o", "junit_family=xunit1"]
        output, code = run(command, folder)
        return Log(folder.name, ["pytest", *PYTEST_FORMS], output, code, report if report.exists() else None)

    pairs = [(suite, way) for suite in suites.PYTEST for way in options]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, pairs))


def unittest_logs(scratch, python):
    logs = []
    for name, files in {"cases": {"test_cases.py": suites.CASES}, "broken": {"test_broken.py": suites.IMPORT}}.items():
        folder = write(scratch / f"unittest-{name}", files)
        for way in (["-v"], [], ["-v", "-b"], ["-v", "-f"]):
            output, code = run([python, "-m", "unittest", "discover", *way], folder)
            logs.append(Log(f"unittest-{name}{''.join(way)}", ["unittest", "django"], output, code))
    return logs


def django_logs(scratch, version, python):
    files = {"settings.py": suites.DJANGO_SETTINGS, "app/__init__.py": "", "app/tests.py": suites.DJANGO_TESTS, "app/urls.py": suites.DJANGO_URLS}
    folder = write(scratch / f"django-{version}", files)
    logs = []
    for way in (["-v2"], ["-v3"], ["-v1"], ["-v2", "--parallel=2"], ["-v2", "app.tests.Two"], ["-v2", "-k", "test_a"], ["-v2", "app.nothing"]):
        output, code = run([python, "-m", "django", "test", *way], folder, DJANGO_SETTINGS_MODULE="settings", PYTHONPATH=str(folder))
        logs.append(Log(f"django-{version}{''.join(way)}", ["django"], output, code))
    return logs


def compiled_logs(scratch, jest):
    """go, cargo, jest, node: whichever there are."""
    logs = []
    folder = write(scratch / "go", suites.GO)
    for name, way in suites.GO_RUNS.items():
        output, code = run(["go", "test", "-count=1", "-vet=off", *way], folder, GOFLAGS="-mod=mod", GOCACHE=str(scratch / "go-cache"))
        logs.append(Log(f"go-{name}", ["go-test", "swebench-go-test"], output, code))
    folder = write(scratch / "cargo", suites.CARGO)
    for name, way in suites.CARGO_RUNS.items():
        output, code = run(["cargo", "test", *way], folder, CARGO_TARGET_DIR=str(scratch / "cargo-target"))
        logs.append(Log(f"cargo-{name}", ["cargo-test", "swebench-cargo-test"], output, code))
    folder = write(scratch / "node", {"a.test.js": suites.NODE})
    for reporter in ("tap", "spec"):
        output, code = run(["node", "--test", f"--test-reporter={reporter}", "a.test.js"], folder)
        logs.append(Log(f"node-{reporter}", ["tap", "swebench-tap"], output, code))
    if jest:
        folder = write(scratch / "jest", suites.JEST)
        for name, way in suites.JEST_RUNS.items():
            output, code = run(["node", jest, "--ci", *way], folder)
            logs.append(Log(f"jest-{name}", ["jest", "swebench-jest", "swebench-vitest"], output, code))
    return logs


EDGES = {
    "django": [
        "test_a (m.C) ... Testing against Django installed in '/x' with up to 4 processes\nCreating ...\nSystem check (0 silenced).\nok",
        "test_a (m.C) ... Internal Server Error: /x/\nok\ntest_b (m.C) ... System check identified no issues (0 silenced)\nok",
        "Applying sites.0002_alter_domain_unique...test_no_migrations (m.C) ... ok\n--version is equivalent to version",
        "test_a (m.C) ...  OK\ntest_b (m.C) ... OK\ntest_a (m.C) ... FAIL\nERROR: test_b (m.C)\nokay then",
        "test_a (m.C) ... test_b (m.C) ... ok\n... ok\n ... ERROR\nx ... skipped y ... ok",
    ],
    "swebench-sympy": [
        "sympy/core/tests/test_a.py[4] test_one ok\ntest_two F\ntest_three E\ntest_four ok [OK]\n____ sympy/core/tests/test_a.py:test_two ____\nassert",
        "________ a b.py:c.py:d e ________\n x.py: y\n_x.py:z_\n.py: \n x.py:y\ntest_a ok\n  test_b   ok\ntest_c\tok",
    ],
    "swebench-go-test": ["--- PASS: A (b) (0.00s)\n--- PASS: A (0.00s) \n  --- SKIP: A/b (1)\n--- FAIL: (1s)\n--- PASS: x ()\n--- PASS: a (1) b"],
    "swebench-cargo-test": ["test a ... ok\n test  b  ...  FAILED \ntest c ... ignored\ntest d - should panic ... ok\ntest e ... okay\ntest f ... ok ok"],
    "swebench-jest": ["✓ a\n✓  b  (5 ms)\n  ✕ c (5ms)\n○ skipped d\n✓ e (1.5 s)\n✓ f (3 s)\n✓x\n✓ (4 ms)\n✕ g (4 ms) h"],
    "swebench-vitest": ["✓ a > b 5ms\n× c 1\n↓ d [skipped]\n✓ e 5 ms\n✓ 5ms\n✓ f  7 m s\n✓ g[skipped]\n✓ h 5s 6s\n✓ i 12 34"],
    "swebench-tap": ["ok 1 - a\nnot ok 2 - b # Todo\n  ok 3 c # SKIP\nok 4\nok x y\nokay 5 d\nok 6  e\nBail out!"],
    "swebench-pytest": [
        "PASSED a::b\nPASSED\nPASSED  c::d  e\nFAILED x - y - z\nFAILED - x\nSKIPPED [3] a.py:1: x\nSKIPPED a::s\nXFAIL a::x - why\nXPASS a::y",
        "PASSED [100%]\nERROR: file not found: x\nERRORS 3\nPASSEDx y\n PASSED z\nPASSED a[/b/c]\nPASSED a[x][/y/z]w\nFAILED a[MouseButton.LEFT-MouseButton.RIGHT] - q",
        "a::b PASSED [ 50%]\na::c FAILED\nx y PASSED\nPASSED\nxPASSED\n\x1b[32mPASSED\x1b[0m a::d\n[32mFAILED[0m a::e - f\nPASSED\ta::f\n",
        "",
        "PASSED a::b[x\nPASSED a::b[y z]\nFAILED a::b[z w]\n",
    ],
}


def edge_logs():
    logs = []
    for form, texts in EDGES.items():
        forms = PYTEST_FORMS if form == "swebench-pytest" else [form]
        logs += [Log(f"edge-{form}-{i}", forms, text, None if i % 2 else 0) for i, text in enumerate(texts)]
    return logs


def mutated(logs, seed):
    """One odd log from each: lines lost, doubled, swapped, joined, cut or coloured."""
    draw = random.Random(seed)
    odd = []
    for log in logs:
        lines = log.output.split("\n")
        for _ in range(1 + len(lines) // 20):
            at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
            match draw.randrange(7):
                case 0:
                    lines[at] = ""
                case 1:
                    lines.insert(other, lines[at])
                case 2:
                    lines[at], lines[other] = lines[other], lines[at]
                case 3:
                    lines[at] = lines[at] + " " + lines[other]
                case 4:
                    lines[at] = lines[at][: draw.randrange(1 + len(lines[at]))]
                case 5:
                    lines[at] = f"\x1b[3{draw.randrange(8)}m{lines[at]}\x1b[0m"
                case 6:
                    lines[at] += "\r"
        forms = [form for form in log.forms if form.startswith("swebench") or form == "django"]
        code = draw.choice([log.exit_code, 0, 1, None])
        odd.append(Log(f"{log.name}-odd", forms, "\n".join(lines), code))
    return odd


def all_logs(scratch, pythons, jest, seed):
    """`pythons`: version of pytest -> interpreter that has it."""
    logs = []
    for version, python in pythons.items():
        ways = list(suites.PYTEST_OPTIONS)
        if version.startswith("5"):
            ways = ways[:8]
        print(f"  pytest {version}", file=sys.stderr, flush=True)
        logs += pytest_logs(scratch, version, python, ways)
    for name in ("django", "go, cargo, node, jest"):
        print(f"  {name}", file=sys.stderr, flush=True)
        if name == "django":
            for version, python in pythons.items():
                if run([python, "-c", "import django"], scratch)[1] == 0:
                    logs += django_logs(scratch, version, python)
        else:
            logs += compiled_logs(scratch, jest)
    logs += unittest_logs(scratch, sys.executable)
    real = len(logs)
    return logs + edge_logs() + mutated(logs, seed), real
