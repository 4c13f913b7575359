// The reward {{name}}: 1 where the answer is the expected one.

import { reward } from 'espalier-sdk/reward';

export default reward({
  // What an experiment can set under `settings` of the reward; one without a default must be set.
  settings: {
    case_sensitive: { type: 'boolean', default: false, description: 'Whether upper and lower case differ.' },
  },

  // What the private part of a task must have; a task without it ends as a failure that names the field.
  task: {
    private: { answer: { type: 'string' } },
  },

  score(rollout, settings) {
    const plain = (text: string) => (settings.case_sensitive ? text.trim() : text.trim().toLowerCase());
    const expected = rollout.task.private.answer;
    const { answer } = rollout;
    const correct = answer !== null && plain(answer) === plain(expected);
    return [
      { value: correct ? 1 : 0, reason: answer === null ? 'no answer' : `expected "${expected}", got "${answer}"` },
      { name: 'turns', value: rollout.turns.length },
    ];
  },
});
