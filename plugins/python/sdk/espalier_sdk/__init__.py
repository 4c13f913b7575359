"""Plugins of Espalier in Python: harnesses, environments, rewards, group rewards, judges and task generators.

A plugin is one function, or one class, with the decorator of its kind::

    from espalier_sdk import Conversation, Report, Task, harness

    @harness
    def run(task: Task) -> Report:
        answer = Conversation().user(task.instruction).complete()
        return Report.submitted(answer=answer.text)

Settings are a dataclass (see :mod:`espalier_sdk.schema`), failures are exceptions, `print` and :mod:`espalier_sdk.log` write to the
rollout's log, :mod:`random` and :mod:`time` follow the run's seed and the engine's clock. Everything that does not call the engine is
ordinary Python and can be tested with pytest.
"""

import sys

# A build must not leave files beside the author's.
if sys.platform == "wasi":
    sys.dont_write_bytecode = True

from . import blobs, log
from .browser import Area, Browser, BrowserStep, Effect, Element, End, Picture, Position, Problem, Settled, Snapshot, Tab
from .conversation import Answer, Branch, Conversation, Usage
from .exports import environment, group_reward, harness, judge, reward, task_generator
from .failures import Budget, Cancelled, Denied, Failure, Invalid, Other, Unavailable
from .sandbox import Outcome, Output, Process, Sandbox, Shell, wait_any
from .schema import DecodeError, Length, Pattern, Range, decode, schema_of
from .service import Response, Service
from .tools import ToolError, Tools
from .values import (
    Image,
    Judgement,
    Message,
    Observation,
    Report,
    Request,
    Rollout,
    Score,
    Statistics,
    Step,
    StepResult,
    Task,
    TextBlob,
    ToolCall,
    ToolResult,
    Turn,
    Vote,
)
from .world import Environment

__all__ = [
    "Answer",
    "Area",
    "Branch",
    "Browser",
    "BrowserStep",
    "Budget",
    "Cancelled",
    "Conversation",
    "DecodeError",
    "Denied",
    "Effect",
    "Element",
    "End",
    "Environment",
    "Failure",
    "Image",
    "Invalid",
    "Judgement",
    "Length",
    "Message",
    "Observation",
    "Other",
    "Outcome",
    "Output",
    "Pattern",
    "Picture",
    "Position",
    "Problem",
    "Process",
    "Range",
    "Report",
    "Request",
    "Response",
    "Rollout",
    "Sandbox",
    "Score",
    "Service",
    "Settled",
    "Shell",
    "Snapshot",
    "Statistics",
    "Step",
    "StepResult",
    "Tab",
    "Task",
    "TextBlob",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "Tools",
    "Turn",
    "Unavailable",
    "Usage",
    "Vote",
    "blobs",
    "decode",
    "environment",
    "group_reward",
    "harness",
    "judge",
    "log",
    "reward",
    "schema_of",
    "task_generator",
    "wait_any",
]
