"""The harness `once`: lets the model answer once and carries the answer out. The example of docs/plugins.md."""

import json

from wit_world import exports
from wit_world.imports import conversations, environments, messages, reports

OPTIONS = conversations.Options(max_tokens=None, stop=[], temperature=None, tool_choice=None, extra=None)


class Configurable(exports.Configurable):
    def settings_schema(self) -> str:
        return json.dumps({"type": "object", "additionalProperties": False})


class Harness(exports.Harness):
    def run(self, task) -> reports.Report:
        world = environments.open()
        text = f"{task.instruction}\n{world.reset().text}"
        first = messages.Message(role=messages.Role.USER, parts=[messages.Part_Text(text)], extra=None)
        answer = conversations.open("policy", [first], []).complete(OPTIONS)
        world.step(answer.message.parts[0].value.strip())
        return reports.Report(outcome=reports.Outcome_Submitted(), answer=None, data="null", extra=None)
