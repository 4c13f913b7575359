// Group rewards: what scores the rollouts of a group together.

import { define, exportsOf, settings } from './exports.js';
import { groupToWit } from './scores.js';
import { rolloutFrom } from './values.js';

export { blobs } from './blobs.js';
export { Conversation } from './conversation.js';
export { Failure } from './failure.js';
export { log } from './log.js';
export { random } from './random.js';
export { openFreshSandbox } from './scoring.js';
export { waitForAny } from './sandbox.js';
export { ToolError, tool } from './tools.js';

/** A group reward of `score(rollouts, settings)`, which returns for each rollout a number, a score, or a list of them. */
export function groupReward(declared) {
  return define('group-reward', declared, ['score']);
}

/** The exports of its component. */
export function componentOf(plugin) {
  const { functions, configurable } = exportsOf(plugin, 'group-reward', ({ score }) => ({
    scoreGroup: (own, rollouts) => {
      const views = rollouts.map((rollout) => rolloutFrom(rollout, own));
      return groupToWit(own, 'score', score(views, settings()), rollouts.length);
    },
  }));
  return { groupReward: functions, configurable };
}
