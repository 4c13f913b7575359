// The judge {{name}}: a model says whether the answer meets a rubric, several times.

import { Conversation, Failure, judge } from 'espalier-sdk/judge';

const SYSTEM =
  'You are a strict judge. Think briefly, then end with \\boxed{1} if the rubric is met, else \\boxed{0}.';

/** 1 or 0, as the last box of an answer says; null where there is none. */
export function verdictIn(text: string): number | null {
  const last = [...text.matchAll(/\\boxed\{([01])\}/g)].at(-1);
  return last === undefined ? null : Number(last[1]);
}

export default judge({
  // What an experiment can set under `settings` of the judge; one without a default must be set.
  settings: {
    rubric: { type: 'string', default: 'The answer is correct and complete.', description: 'What is asked of an answer.' },
    votes: { type: 'integer', minimum: 1, maximum: 9, default: 3, description: 'How often the model is asked.' },
  },

  judge(rollout, settings) {
    const conversation = new Conversation('judge');
    conversation.system(SYSTEM);
    conversation.user(
      `Rubric: ${settings.rubric}\n\nTask: ${rollout.task.instruction}\n\nAnswer: ${rollout.answer ?? '(none)'}`,
    );
    const votes = conversation
      .completeMany(settings.votes)
      .map(({ text, call }) => ({ value: verdictIn(text), text, call }));

    const values = votes.map(({ value }) => value).filter((value) => value !== null);
    if (values.length === 0) {
      throw Failure.other('no-verdict', `none of the ${votes.length} votes could be parsed`);
    }
    const agreed = values.reduce((sum, value) => sum + value, 0);
    const reason = `${agreed} of ${values.length} votes for`;
    return { scores: [{ value: agreed / values.length, reason }], votes };
  },
});
