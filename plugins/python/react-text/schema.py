"""What an experiment can say about the dialogue; the host checks it and fills in the defaults."""


def _text(description, default):
    return {"type": "string", "description": description, "default": default}


def _texts(description):
    return {"type": "array", "items": {"type": "string"}, "description": description, "default": []}


def _optional(kind, description, **more):
    return {"type": [kind, "null"], "description": description, **more}


def _count(description, default, maximum):
    return {"type": "integer", "description": description, "default": default, "minimum": 1, "maximum": maximum}


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Settings",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "model": _text("Name of the model in the experiment.", "policy"),
        "system": _optional("string", "System message; default: none."),
        "prompt": _text(
            "Text before the examples.",
            "You act in a text world, one action at a time. Think first, then end your answer with one line of the "
            "form `Action: <action>`.",
        ),
        "examples": _texts("Worked examples, in order."),
        "opening": _text(
            "First message, with `{prompt}`, `{examples}`, `{instruction}` and `{observation}`.",
            "{prompt}\n\n{examples}\n\n{instruction}\n\n{observation}",
        ),
        "reply": _text("Message after an action, with `{observation}`.", "{observation}"),
        "form": {
            "enum": ["action", "prompt", "line"],
            "description": "The form of an action in an answer: after `Action:`, after `>`, or as its first line.",
            "default": "action",
        },
        "format_error": _text(
            "Observation for an answer without an action.",
            "There was no action in your answer. End it with one line of the form `Action: <action>`.",
        ),
        "format_errors_max": _count("Number of consecutive answers without an action that end the rollout.", 3, 1000),
        "max_turns": _count("Number of answers that end the rollout.", 20, 10000),
        "give_up": _optional("string", "Action with which the model gives up; default: none."),
        "stop": _texts("Stop strings that end an answer; empty: those of the experiment."),
        "max_tokens": _optional("integer", "Maximum tokens of one answer; default: that of the experiment.", minimum=1),
        "temperature": _optional(
            "number", "Temperature of the answers; default: that of the experiment.", minimum=0, maximum=100
        ),
    },
}
