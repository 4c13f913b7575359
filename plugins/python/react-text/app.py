"""The harness `react-text` in Python: the model thinks, names one action as text, sees what came of it, and so on."""

from espalier_sdk import Conversation, Environment, Report, Task, harness

from dialogue import Act, Dialogue, End
from settings import Settings


@harness
def run(task: Task, settings: Settings) -> Report:
    dialogue = Dialogue(settings)
    world = Environment.open()
    conversation = Conversation(
        settings.model,
        max_tokens=settings.max_tokens,
        stop=settings.stop,
        temperature=settings.temperature,
    )
    if settings.system:
        conversation.system(settings.system)
    conversation.user(dialogue.opening(task.instruction, world.reset().text))
    while True:
        move = dialogue.answered(conversation.complete().text)
        if isinstance(move, Act):
            step = world.step(move.action)
            move = dialogue.stepped(step.text, step.reward, step.done)
        if isinstance(move, End):
            return report(move.cause, dialogue.data())
        conversation.user(move.text)


def report(cause: str, data: dict[str, float]) -> Report:
    match cause:
        case "done":
            return Report.submitted(data=data)
        case "gave-up":
            return Report.gave_up(data=data)
    return Report.limit(cause, data=data)
