"""`make demo-train`: a whole training of a small model by reinforcement learning on this machine's CPU, with a real serving engine.

Goals are drawn, reference episodes are made and fine-tuned on, vLLM serves the result; then the engine samples groups, the trainer
(trainer.py) trains on them and puts its weights into the server, step after step. Goals that were held out are played before and after.

Everything is in one folder. The same command goes on from what is there, however it ended: also after `kill -9` of the engine, the trainer
or the server. docs/demo-train.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional

import goals
import history
import kills
import report
from processes import Failed, Process, end_leftover, free_port

HERE = Path(__file__).resolve().parent
EXPERIMENTS = {name: HERE / f"{name}.toml" for name in ("reference", "evaluate", "grpo")}
#: Tables that make an episode what it is: the same in all three.
EPISODE = ("harness", "environment")
#: The long-running processes, in the order in which they are started; ended in the opposite one.
PROCESSES = ("server", "engine", "trainer")
#: Until the server answers, and until the engine delivers.
SERVER_READY_S = 900.0
ENGINE_READY_S = 180.0
POLL_S = 0.25
#: No bars of progress, no questions to a hub.
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


class Demo:
    """One training, in one folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.folder: Path = args.folder
        self.store = self.folder / "store"
        self.running: Dict[str, Process] = {}
        self.url = ""
        self.began = time.monotonic()

    def run(self) -> None:
        """Every part that is not done yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.check_settings()
        for name in PROCESSES:
            end_leftover(self.folder, name)
        args = self.args
        goals.split(args.tasks, self.folder, args.seed, args.train_goals, args.held_out)
        try:
            self.fine_tune()
            held_out = {"before": self.evaluated("before"), "after": self.evaluated("after")}
            if None in held_out.values() or len(self.steps()) < args.steps:
                self.serve()
                if held_out["before"] is None:
                    held_out["before"] = self.evaluate("before")
                if len(self.steps()) < args.steps:
                    self.train()
                held_out["after"] = self.evaluate("after")
            self.show(held_out)
        finally:
            self.stop()
            (self.folder / "seconds").write_text(f"{self.seconds():.0f}")

    def seconds(self) -> float:
        """What this training took so far, all starts together."""
        file = self.folder / "seconds"
        before = float(file.read_text()) if file.exists() else 0.0
        # Showing again what is done adds nothing.
        return before if (self.folder / "summary.json").exists() else before + time.monotonic() - self.began

    def check_settings(self) -> None:
        """A folder belongs to one setting; the three experiments play the same episodes."""
        tables = {name: tomllib.loads(file.read_text()) for name, file in EXPERIMENTS.items()}
        for key in EPISODE:
            if any(table[key] != tables["grpo"][key] for table in tables.values()):
                raise Failed(f"[{key}] differs between {', '.join(str(file) for file in EXPERIMENTS.values())}: episodes must be the same")
        names = (
            "seed", "steps", "groups", "size", "train_goals", "held_out", "episodes", "passes", "small", "rows_max", "sft_rate", "rate"
        )  # fmt: skip
        wanted = {name: getattr(self.args, name) for name in names} | {"model": str(self.args.model)}
        file = self.folder / "settings.json"
        known = json.loads(file.read_text()) if file.exists() else wanted
        differing = [f"{key} is {known.get(key)!r}, and {wanted[key]!r} is asked for" for key in wanted if known.get(key) != wanted[key]]
        if differing:
            raise Failed(f"{self.folder} holds another training: {'; '.join(differing)}\nhint: go on with its settings, name another --folder, or remove it")
        file.write_text(json.dumps(wanted))

    # Fine-tuning.

    def fine_tune(self) -> None:
        """Reference episodes, by the engine and its export; then weights that have learned them once."""
        start = self.folder / "sft"
        if start.exists():
            return
        chat = self.folder / "chat.jsonl"
        if not chat.exists():
            say("reference episodes: a scripted model plays the solutions")
            sets = {
                "tasks.source": self.folder / "train.jsonl", "tasks.limit": self.args.episodes, "seed": self.args.seed,
                "models.policy.file": self.folder / "answers.jsonl",
            }  # fmt: skip
            self.espalier("run", EXPERIMENTS["reference"], *settings(sets))
            part = chat.with_suffix(".part")
            part.unlink(missing_ok=True)
            self.espalier("export", "train-reference", "--format", "sft-chat", "--select", "successes", "--out", part)
            episodes = len(part.read_text().splitlines())
            if episodes != self.args.episodes:
                raise Failed(f"{episodes} of {self.args.episodes} reference episodes were solved (espalier --store {self.store} show train-reference)")
            part.rename(chat)
        say(f"fine-tuning on {self.args.episodes} reference episodes")
        self.python(
            "sft", "--model", self.args.model, "--episodes", chat, "--out", start, "--passes", self.args.passes, "--seed", self.args.seed,
            "--rate", self.args.sft_rate,
        )  # fmt: skip

    def trainer_env(self) -> Dict[str, str]:
        path = [str(HERE.parent.parent / "clients/python/src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": str(self.args.threads), "PYTHONDONTWRITEBYTECODE": "1"}

    def python(self, *words: object) -> None:
        command = [sys.executable, str(HERE / "trainer.py"), *map(str, words)]
        done = subprocess.run(command, env={**os.environ, **self.trainer_env(), **QUIET}, check=False)
        if done.returncode != 0:
            raise Failed(f"trainer.py {words[0]} ended with exit code {done.returncode}")

    def espalier(self, *words: object) -> str:
        """A command of the engine; what it printed on standard output."""
        command = [str(self.args.espalier), "--store", str(self.store), *map(str, words)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)} ended with exit code {done.returncode}\n{done.stderr.strip()}")
        return done.stdout

    # The server.

    def newest(self) -> Path:
        """The newest weights."""
        whole = sorted(path for path in (self.folder / "checkpoints").glob("step-*") if path.suffix != ".part")
        return whole[-1] if whole else self.folder / "sft"

    def serve(self) -> None:
        """Starts vLLM with the newest weights and waits until it answers."""
        port, weights = free_port(), self.newest()
        self.url = f"http://127.0.0.1:{port}"
        say(f"starting vLLM with {weights.name} (about a minute; {self.folder / 'server.log'})")
        # Prompts are not cut into chunks: on the CPU this vLLM dies of a chunk of a request that has a seed.
        command = [
            Path(sys.executable).with_name("vllm"), "serve", weights, "--served-model-name", "policy", "--host", "127.0.0.1", "--port", port,
            "--dtype", "bfloat16", "--max-model-len", 2048, "--max-num-batched-tokens", 4096, "--no-enable-chunked-prefill", "--enforce-eager",
            "--enable-scale-out", "--enable-tokenizer-info-endpoint",
        ]  # fmt: skip
        env = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}
        if self.args.threads < cores():
            env |= {"OMP_NUM_THREADS": str(self.args.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.running["server"] = Process("server", command, self.folder, env)
        self.wait(SERVER_READY_S, lambda: self.ask("/health") is not None, "vLLM does not answer")
        # So that what it samples before its first update names its weights.
        self.ask("/update_weight_version", {"new_version": (weights / "label").read_text()}, must=True)

    def ask(self, route: str, body: Optional[Dict[str, Any]] = None, must: bool = False) -> Optional[bytes]:
        """What the server answers; None where it does not."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + route, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return bytes(answer.read())
        except (urllib.error.URLError, OSError) as error:
            if must:
                raise Failed(f"vLLM, {route}: {error}") from error
            return None

    def model_settings(self) -> Dict[str, object]:
        return {"models.policy.url": self.url, "models.policy.tokenizer": self.args.model / "tokenizer.json"}

    # Evaluation.

    def evaluate(self, when: str) -> float:
        """Plays the held-out goals with the weights that the server has; their share of solved rollouts."""
        say(f"held-out goals, {when}: {self.args.held_out}, four times each")
        sets = {"name": f"train-{when}", "seed": self.args.seed, "tasks.source": self.folder / "held-out.jsonl", **self.model_settings()}
        # It ends with the server: were it to be killed meanwhile, the same command goes on.
        self.espalier("run", EXPERIMENTS["evaluate"], *settings(sets))
        solved = self.evaluated(when)
        if solved is None:
            raise Failed(f"the evaluation did not finish (espalier --store {self.store} show train-{when})")
        say(f"held-out goals, {when}: {solved:.1%} solved")
        return solved

    def evaluated(self, when: str) -> Optional[float]:
        """What an evaluation came to; None where it did not finish."""
        run = self.run_of(f"train-{when}")
        if run is None or run["state"] != "finished":
            return None
        attempts = [attempt for group in self.groups(run["run_id"]) for attempt in group["attempts"]]
        rewards = [attempt["reward"] for attempt in attempts if attempt["state"] == "final" and attempt["reward"] is not None]
        return sum(reward >= 1 for reward in rewards) / len(rewards)

    def run_of(self, name: str) -> Optional[Dict[str, Any]]:
        if not self.store.exists():
            return None
        runs: List[Dict[str, Any]] = json.loads(self.espalier("list", "--json"))
        return next((run for run in runs if run["name"] == name), None)

    def groups(self, run: str) -> List[Dict[str, Any]]:
        found: List[Dict[str, Any]] = json.loads(self.espalier("show", run, "--json", "--all"))["group_list"]
        return found

    # Training.

    def train(self) -> None:
        """The engine and the trainer, until the last step; a line for each."""
        args = self.args
        total = args.steps * args.groups
        passes = -(-total // args.train_goals)
        if total % passes:
            raise Failed(f"{args.steps} steps of {args.groups} groups are no whole number of passes over {args.train_goals} goals: choose other --steps")
        sets = {
            "seed": args.seed, "tasks.source": self.folder / "train.jsonl", "tasks.limit": total // passes, "tasks.repeat": passes,
            "groups.size": args.size, "delivery.undelivered_max": args.groups, **self.model_settings(),
        }  # fmt: skip
        if args.small:
            # A random model solves nothing: that it learns to say less is enough to train on.
            sets["rewards"] = '[{plugin = "environment-reward"}, {plugin = "length-penalty"}]'
        say(f"training: {args.steps} steps of {args.groups} groups of {args.size} rollouts ({self.folder / 'trainer.jsonl'})")
        store = ["--store", self.store]
        self.running["engine"] = Process("engine", [args.espalier, *store, "run", EXPERIMENTS["grpo"], *settings(sets)], self.folder)
        run = self.delivering()
        self.running["trainer"] = Process(
            "trainer",
            [
                sys.executable, HERE / "trainer.py", "grpo", "--model", self.folder / "sft", "--folder", self.folder, "--run", run,
                "--url", f"unix:{self.store}/delivery/{run}.sock", *store, "--espalier", args.espalier, "--steps", args.steps,
                "--groups", args.groups, "--seed", args.seed, "--rows-max", args.rows_max, "--rate", args.rate,
            ],
            self.folder,
            {**self.trainer_env(), **QUIET},
        )  # fmt: skip
        self.follow()

    def delivering(self) -> str:
        """The id of the run, once its socket takes connections."""
        found: List[str] = []

        def is_there() -> bool:
            run = self.run_of("train-grpo")
            if run is None:
                return False
            found[:] = [run["run_id"]]
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(self.store / "delivery" / f"{run['run_id']}.sock"))
                except OSError:
                    return False
            return True

        self.wait(ENGINE_READY_S, is_there, "the engine does not deliver groups")
        return found[0]

    def follow(self) -> None:
        """Waits for the trainer; tells each step, and what of its time the engine took."""
        seen = len(history.read(self.folder / "trainer.jsonl"))
        engine, trainer = self.running["engine"], self.running["trainer"]
        cpu = engine.cpu_s()
        while True:
            code = trainer.code()
            events = history.read(self.folder / "trainer.jsonl")
            for event in events[seen:]:
                if event["event"] == "begin":
                    cpu = engine.cpu_s()
                if event["event"] == "saved":
                    used, cpu = engine.cpu_s() - cpu + event["client_cpu_s"], engine.cpu_s()
                    self.note_share(event["step"], used / event["step_s"])
                    step = history.steps(events)[event["step"]]
                    say(f"{report.step_line(step)}, engine {used / event['step_s']:.2%}")
            seen = len(events)
            if code == 0:
                break
            self.check_alive()
            time.sleep(POLL_S)
        # The run is over once all its groups are acknowledged.
        engine.wait(30.0)
        self.running.pop("trainer").stop()
        self.running.pop("engine").stop()

    def note_share(self, step: int, share: float) -> None:
        with (self.folder / "engine-share.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "share": share}) + "\n")

    def check_alive(self) -> None:
        """Raises `Failed` where one of the processes has ended."""
        for process in self.running.values():
            if process.code() not in (None, 0) or (process.name == "server" and process.code() is not None):
                raise Failed(process.ended())

    def wait(self, within_s: float, ready: Any, why: str) -> None:
        deadline = time.monotonic() + within_s
        while not ready():
            self.check_alive()
            if time.monotonic() > deadline:
                raise Failed(f"{why} after {within_s:.0f} s; see {self.folder}/*.log")
            time.sleep(1.0)

    def stop(self) -> None:
        for name in reversed(PROCESSES):
            if name in self.running:
                self.running.pop(name).stop()

    # What came of it.

    def steps(self) -> List[Dict[str, Any]]:
        """The steps that the newest checkpoint contains."""
        newest = re.fullmatch(r"step-(\d+)", self.newest().name)
        last = int(newest[1]) if newest else 0
        return [step for number, step in sorted(history.steps(history.read(self.folder / "trainer.jsonl")).items()) if number <= last]

    def show(self, held_out: Dict[str, Optional[float]]) -> None:
        """The plot, the table, the picture; and that each group was trained once."""
        steps = self.steps()
        points = [(int(step["step"]), float(step["reward"])) for step in steps]
        title = f"reward of the rollouts by training step, seed {self.args.seed}"
        shares = {entry["step"]: entry["share"] for entry in history.read(self.folder / "engine-share.jsonl")}
        seconds = self.seconds()
        for line in ["", *report.plot(points, title), "", *report.summary(steps, held_out, shares, seconds)]:
            print(line)
        picture = self.folder / "reward.png"
        report.png(points, held_out["before"], held_out["after"], title, picture)
        summary = {
            "seed": self.args.seed, "held_out": held_out, "seconds": seconds, "reward_by_step": points, "engine_share": shares, "steps": steps
        }  # fmt: skip
        (self.folder / "seconds").write_text(f"{seconds:.0f}")
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=1))
        for line in report.seeds(self.folder.parent, small=self.args.small):
            print(line)
        say(f"the plot as a picture: {picture}; all figures: {self.folder / 'summary.json'}")
        problems = self.problems()
        if problems:
            raise Failed("\n".join(problems))
        say(f"each of {len(self.delivered())} groups was trained once")

    def delivered(self) -> List[str]:
        """The groups of the training that the run delivers."""
        run = self.run_of("train-grpo")
        return [] if run is None else [group["group_id"] for group in self.groups(run["run_id"]) if group["status"] in ("ready", "short")]

    def problems(self) -> List[str]:
        return history.problems(history.read(self.folder / "trainer.jsonl"), self.delivered())


def settings(sets: Dict[str, object]) -> List[str]:
    """`--set` for each; texts and paths quoted, what is TOML already as it stands."""
    words = []
    for key, value in sets.items():
        text = str(value)
        toml = text if isinstance(value, int) or text.startswith("[") else json.dumps(text)
        words += ["--set", f"{key}={toml}"]
    return words


def cores() -> int:
    return len(os.sched_getaffinity(0))


def arguments() -> argparse.Namespace:
    gpu = shutil.which("nvidia-smi") is not None and subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0
    parser = argparse.ArgumentParser(description="A whole training by reinforcement learning on this machine.", allow_abbrev=False)
    add = parser.add_argument
    add("--espalier", type=Path, required=True, help="the program")
    add("--model", type=Path, required=True, help="folder of the model to begin with, as safetensors")
    add("--tasks", type=Path, required=True, help="task file with the goals")
    add("--folder", type=Path, required=True, help="everything of this training is in its folder seed-SEED")
    add("--seed", type=int, default=7)
    add("--steps", type=int, help="training steps; default 8, with --small 2")
    add("--groups", type=int, help="groups of a step; default 16, with --small 4")
    add("--size", type=int, help="rollouts of a group; default 8, with --small 4")
    add("--rows-max", type=int, help="rows of a step that are trained; default 48, with a GPU all")
    add("--train-goals", type=int, help="default 64, with --small 8")
    add("--held-out", type=int, help="goals of the evaluation; default 30, with --small 4")
    add("--episodes", type=int, help="reference episodes; default: one for each goal of the training")
    add("--passes", type=int, default=1, help="passes over the reference episodes")
    add("--sft-rate", type=float, default=1e-5, help="learning rate of the fine-tuning: low, so that something is left to learn")
    add("--rate", type=float, default=2e-5, help="learning rate of the training")
    add("--threads", type=int, default=cores(), help="threads of the server and of the trainer; fewer where others use the machine")
    add("--small", action="store_true", help="for tests: a few steps that show that it works, with a model of any size")
    add("--kills", type=int, default=0, help="starts itself again and again, and kills each of the three processes so many times")
    args = parser.parse_args()
    small = {"steps": 2, "groups": 4, "size": 4, "rows_max": 16, "train_goals": 8, "held_out": 4}
    whole = {"steps": 8, "groups": 16, "size": 8, "rows_max": 4096 if gpu else 48, "train_goals": 64, "held_out": 30}
    for name, value in (small if args.small else whole).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.episodes = args.episodes or args.train_goals
    for name in ("espalier", "model", "tasks", "folder"):
        setattr(args, name, getattr(args, name).resolve())
    args.folder /= f"seed-{args.seed}{'-small' if args.small else ''}"
    return args


def main() -> None:
    args = arguments()
    if args.kills:
        sys.exit(kills.run(sys.argv[1:], args))
    try:
        Demo(args).run()
    except Failed as error:
        say(str(error))
        say("the same command goes on from here")
        sys.exit(1)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        sys.exit(130)


if __name__ == "__main__":
    main()
