from espalier_sdk import Browser, Conversation, Report, Task, harness


@harness
def run(task: Task) -> Report:
    browser = Browser.open()
    conversation = Conversation(tools=browser.tools())
    conversation.user(f"{task.instruction}\n\n{browser.snapshot().text}")
    outcomes: list[str] = []
    while True:
        calls = conversation.complete().tool_calls
        steps = browser.act(calls)
        outcomes += [step.problem.code if step.problem else step.outcome for step in steps]
        for call, step in zip(calls, steps, strict=True):
            if step.ended:
                picture = browser.screenshot(scale=0.5)
                data = {
                    "outcomes": " ".join(outcomes),
                    "url": browser.tabs()[0].url,
                    "title": browser.evaluate_isolated("document.title"),
                    "lamps": browser.evaluate("lamps"),
                    "picture": f"{picture.width} x {picture.height}",
                }
                return Report.submitted(step.ended.response, data)
            conversation.tool_result(call, step.text, is_error=not step.done)
