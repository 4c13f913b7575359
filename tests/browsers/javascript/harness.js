import { Conversation, harness, openBrowser, report } from 'espalier-sdk/harness';

export default harness({
  run(task) {
    const browser = openBrowser();
    const conversation = new Conversation('policy', { tools: browser.tools() });
    conversation.user(`${task.instruction}\n\n${browser.snapshot().text}`);
    const outcomes = [];
    for (;;) {
      const { toolCalls } = conversation.complete();
      const steps = browser.act(toolCalls);
      outcomes.push(...steps.map((step) => step.problem?.code ?? step.outcome));
      const ended = steps.find((step) => step.ended !== null)?.ended;
      if (ended !== undefined) {
        const { width, height } = browser.screenshot({ scale: 0.5 });
        const data = { outcomes: outcomes.join(' '), url: browser.tabs()[0].url, title: browser.evaluateIsolated('document.title') };
        return report.submitted({ answer: ended.response, data: { ...data, lamps: browser.evaluate('lamps'), picture: `${width} x ${height}` } });
      }
      steps.forEach((step, at) => conversation.toolResult(toolCalls[at], step.text, { isError: !step.done }));
    }
  },
});
