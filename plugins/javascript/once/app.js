// The harness `once`: lets the model answer once and carries the answer out. The example of docs/plugins.md.
import { open as openWorld } from 'espalier:environment/environments@0.1.0';
import { open as openConversation } from 'espalier:model/conversations@0.1.0';

const options = { maxTokens: null, stop: [], temperature: null, toolChoice: null, extra: null };

export const harness = {
  run(task) {
    const world = openWorld();
    const text = `${task.instruction}\n${world.reset().text}`;
    const first = { role: 'user', parts: [{ tag: 'text', val: text }], extra: null };
    const answer = openConversation('policy', [first], []).complete(options);
    world.step(answer.message.parts[0].val.trim());
    return { outcome: { tag: 'submitted' }, answer: null, data: 'null', extra: null };
  },
};

export const configurable = {
  settingsSchema: () => JSON.stringify({ type: 'object', additionalProperties: false }),
};
