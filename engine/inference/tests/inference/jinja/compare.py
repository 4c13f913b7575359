"""Renders chat templates with Jinja2, set up as the Python ecosystem does, and compares with the text on each line.

Reads JSON lines {template, source, conversation, prompt, messages, tools, text or raised} from standard input; exit code 1
where one differs.
"""

import datetime
import json
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """`{% generation %}` prints what it encloses."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(1753500000, datetime.timezone.utc).strftime(form)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = strftime_now

compiled = {}
count = 0
different = 0
for line in sys.stdin:
    case = json.loads(line)
    name = case["template"]
    if name not in compiled:
        compiled[name] = environment.from_string(case["source"])
    text, raised = None, None
    try:
        text = compiled[name].render(
            messages=case["messages"],
            tools=case["tools"] or None,
            documents=None,
            add_generation_prompt=case["prompt"],
            bos_token="<s>",
            eos_token="</s>",
        )
    except jinja2.exceptions.TemplateError as error:
        raised = str(error)
    except Exception as error:  # a template may fail in Python's own way: the words differ, the failure must not
        raised = f"error: {error!r}"
    both_fail = raised is not None and raised.startswith("error: ") and (case["raised"] or "").startswith("error: ")
    if text != case["text"] or (raised != case["raised"] and not both_fail):
        different += 1
        print(f"{name}, conversation {case['conversation']}, prompt {case['prompt']}:")
        print(f"  jinja2: {text!r} {raised!r}\n  here:   {case['text']!r} {case['raised']!r}")
    count += 1

if different:
    sys.exit(1)
print(f"{count} renderings equal")
