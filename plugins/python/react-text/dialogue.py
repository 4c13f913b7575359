"""The rules of the loop: what is said first, what an answer means, when it ends. Imports nothing of the host."""

import re
from dataclasses import dataclass

from settings import Settings


@dataclass
class Act:
    """Take this action in the world, then tell `Dialogue.stepped`."""

    action: str


@dataclass
class Say:
    """Send this message and ask again."""

    text: str


@dataclass
class End:
    """The rollout is over: done, gave-up, turns or format."""

    cause: str


def action_in(text: str, form: str) -> str | None:
    """The action of an answer: behind `Action:`, behind `>`, or its first line."""
    lines = [line.strip() for line in text.split("\n")]
    if form == "line":
        return next((line for line in lines if line), None)
    mark = "Action:" if form == "action" else ">"
    behind = next((line.removeprefix(mark) for line in reversed(lines) if line.startswith(mark)), "")
    return behind.strip() or None


def fill(template: str, **values: str) -> str:
    """Puts values in the place of `{name}`; a value is never searched again, and an unknown name stays."""
    return re.sub(r"\{([a-z]+)\}", lambda found: values.get(found[1], found[0]), template)


class Dialogue:
    """One rollout's dialogue. The caller carries out what `answered` asks for."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.turns = 0
        self.steps = 0
        self.format_errors = 0
        self.format_errors_in_a_row = 0
        self.reward = 0.0

    def opening(self, instruction: str, observation: str) -> str:
        """The first message of the user."""
        prompt, template = self.settings.prompt, self.settings.opening
        examples = "\n\n".join(self.settings.examples)
        if not prompt:
            template = template.replace("{prompt}\n\n", "")
        if not examples:
            template = template.replace("{examples}\n\n", "")
        return fill(template, prompt=prompt, examples=examples, instruction=instruction, observation=observation)

    def answered(self, text: str) -> Act | Say | End:
        """What one answer of the model calls for."""
        self.turns += 1
        action = action_in(text, self.settings.form)
        if action is None:
            self.format_errors += 1
            self.format_errors_in_a_row += 1
            if self.format_errors_in_a_row >= self.settings.format_errors_max:
                return End("format")
            return self._say(self.settings.format_error)
        self.format_errors_in_a_row = 0
        return End("gave-up") if action == self.settings.give_up else Act(action)

    def stepped(self, observation: str, reward: float | None, done: bool) -> Say | End:
        """What follows from the world's answer to the action."""
        self.steps += 1
        self.reward += reward or 0.0
        return End("done") if done else self._say(observation)

    def data(self) -> dict[str, float]:
        """Facts for rewards and people."""
        return {
            "turns": self.turns,
            "steps": self.steps,
            "format_errors": self.format_errors,
            "reward": self.reward,
        }

    def _say(self, observation: str) -> Say | End:
        if self.turns >= self.settings.max_turns:
            return End("turns")
        return Say(fill(self.settings.reply, observation=observation))
