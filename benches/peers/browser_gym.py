"""BrowserGym (PyPI `browsergym-core`) as a peer of the bench `browser`: its environment as installed, with its own wait of half a
second before each observation, playing episodes of MiniWoB++ by the oracle that every driver asks.

Reads a command a line (JSON), answers with a line. `CHROMIUM` names the browser.
"""

import json
import logging
import os
import pathlib
import sys
import time

import gymnasium
from browsergym.core.env import BrowserEnv
from browsergym.core.task import AbstractBrowserTask
from playwright.sync_api import BrowserType

logging.disable(logging.WARNING)
gymnasium.logger.min_level = 50
ORACLE = (pathlib.Path(__file__).parent / "miniwob_oracle.js").read_text(encoding="utf-8")


LAUNCH = BrowserType.launch


def launch(self: BrowserType, **options) -> object:
    """Every browser is the one that the other drivers have: the environment's own, and that of its chat window."""
    return LAUNCH(self, **{**options, "executable_path": os.environ["CHROMIUM"], "chromium_sandbox": os.getuid() != 0})


BrowserType.launch = launch


class Page(AbstractBrowserTask):
    """A page that is opened, without a reward of its own."""

    def __init__(self, seed: int, url: str = "", script: str = "") -> None:
        super().__init__(seed)
        self.url, self.script = url, script
        self.viewport = {"width": 1280, "height": 1000}
        self.slow_mo = 0
        self.timeout = 5000

    @classmethod
    def get_task_id(cls) -> str:
        return "page"

    def setup(self, page) -> tuple[str, dict]:
        page.goto(self.url)
        page.evaluate(self.script)
        page.wait_for_function("WOB_TASK_READY")
        return "-", {}

    def teardown(self) -> None:
        pass

    def validate(self, page, chat_messages) -> tuple[float, bool, str, dict]:
        return 0.0, False, "", {}


def episode(url: str, seed: int, done: dict) -> None:
    script = f"Math.seedrandom({seed}); core.EPISODE_MAX_TIME = 1e6; core.startEpisodeReal()"
    environment = BrowserEnv(
        task_entrypoint=Page,
        task_kwargs={"url": url, "script": script},
        headless=True,
        slow_mo=0,
    )
    try:
        environment.reset(seed=seed)
        page = environment.page
        for _ in range(12):
            following = page.evaluate(ORACLE)
            if following is None:
                break
            if following["kind"] == "wait":
                done["waits"] += 1
                environment.step("noop(500)")
                continue
            bid = page.locator(following["selector"]).get_attribute("bid")
            text = following.get("text")
            action = f"click({bid!r})" if text is None else f"fill({bid!r}, {text!r})"
            began = time.perf_counter()
            observation, *_ = environment.step(action)
            done["action_ms"].append((time.perf_counter() - began) * 1e3)
            if observation["last_action_error"]:
                done["errors"].append(observation["last_action_error"][:200])
        done["episodes"] += 1
        done["solved"] += page.evaluate("WOB_RAW_REWARD_GLOBAL") > 0
    finally:
        environment.close()


def main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "end":
            print("{}", flush=True)
            return
        done = {"solved": 0, "episodes": 0, "waits": 0, "action_ms": [], "errors": []}
        try:
            for task in command["tasks"]:
                for seed in command["seeds"]:
                    episode(f"{command['base']}/miniwob/{task}.html", seed, done)
        except Exception as error:  # noqa: BLE001 - told to the bench, which prints it
            done = {"error": repr(error)}
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
