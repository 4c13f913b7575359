"""The environment of the rollout, for a harness."""

from typing import Any

from . import convert, wit
from .values import Observation, StepResult


class Environment:
    """The world of this rollout: ``world = Environment.open()``."""

    def __init__(self, opened: Any) -> None:
        self._open = opened

    @classmethod
    def open(cls) -> "Environment":
        """Opens the environment of the task, once in a rollout. Errors: ``Invalid`` where the experiment names none."""
        return cls(wit.call(wit.environments.open))

    def reset(self) -> Observation:
        """Puts the world into its first state."""
        return convert.observation_in(wit.call(self._open.reset))

    def step(self, action: str) -> StepResult:
        """Carries out one action, taken as it is. Errors: ``Invalid`` before `reset` or after the episode is over."""
        return convert.step_result_in(wit.call(self._open.step, convert.text_out(action, "action")))

    def actions(self) -> list[str]:
        """The actions possible now; empty where the world does not list them."""
        return list(wit.call(self._open.actions))
