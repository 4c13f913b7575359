// The group reward {{name}}: a rollout is right where it answers as most of its group do.

import { groupReward } from 'espalier-sdk/group-reward';

/** The answer that most gave, the earlier one where two are level, and how many gave it; null where nobody answered. */
export function majority(answers) {
  const votes = new Map();
  for (const answer of answers) {
    if (answer !== null) votes.set(answer, (votes.get(answer) ?? 0) + 1);
  }
  let most = null;
  for (const [answer, count] of votes) {
    if (most === null || count > most.count) most = { answer, count };
  }
  return most;
}

export default groupReward({
  // One score for each rollout, in their order.
  score(rollouts) {
    const answers = rollouts.map(({ answer }) => answer?.trim().toLowerCase() ?? null);
    const most = majority(answers);
    if (most === null) return answers.map(() => ({ value: 0, reason: 'no answers' }));
    const reason = `majority: "${most.answer}" (${most.count} of ${answers.length})`;
    return answers.map((answer) => ({ value: answer === most.answer ? 1 : 0, reason }));
  },
});
