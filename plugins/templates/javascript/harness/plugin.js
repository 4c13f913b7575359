// The harness {{name}}: the model acts in a text world, one action an answer.

import { Conversation, harness, openEnvironment, report } from 'espalier-sdk/harness';

const ANSWER_FORM = 'End it with one line `Action: <action>`.';

/** What stands behind the last line that starts with `Action:`; null where there is nothing. */
export function actionIn(text) {
  const line = text.split('\n').findLast((line) => line.startsWith('Action:'));
  return line?.slice('Action:'.length).trim() || null;
}

export default harness({
  // What an experiment can set under [harness.settings]; one without a default must be set.
  settings: {
    system: {
      type: 'string',
      default: 'You act in a text world. End each answer with one line `Action: <action>`.',
      description: 'The system message.',
    },
    max_turns: { type: 'integer', minimum: 1, default: 10, description: 'Answers after which the rollout ends.' },
  },

  run(task, settings) {
    const world = openEnvironment();
    const { text } = world.reset();
    const conversation = new Conversation('policy');
    conversation.system(settings.system).user(`${task.instruction}\n\n${text}`);

    let reward = 0;
    for (let turns = 1; turns <= settings.max_turns; turns += 1) {
      const action = actionIn(conversation.complete().text);
      if (action === null) {
        conversation.user(`There was no action in your answer. ${ANSWER_FORM}`);
        continue;
      }
      const step = world.step(action);
      reward += step.reward ?? 0;
      if (step.done) return report.submitted({ answer: step.text, data: { turns, reward } });
      conversation.user(step.text);
    }
    return report.limit('turns', { data: { turns: settings.max_turns, reward } });
  },
});
