// Rewards: what scores one rollout.

import { define, exportsOf, settings } from './exports.js';
import { scoresToWit } from './scores.js';
import { rolloutFrom } from './values.js';

export { blobs } from './blobs.js';
export { openBrowser } from './browser.js';
export { Failure } from './failure.js';
export { log } from './log.js';
export { random } from './random.js';
export { openSandbox, waitForAny } from './sandbox.js';
export { openFreshSandbox } from './scoring.js';
export { Service } from './service.js';

/** A reward of `score(rollout, settings)`, which returns a number, a score, or a list of them. */
export function reward(declared) {
  return define('reward', declared, ['score']);
}

/** The exports of its component. */
export function componentOf(plugin) {
  const { functions, configurable } = exportsOf(plugin, 'reward', ({ score }) => ({
    scoreRollout: (own, rollout) => scoresToWit(own, 'score', score(rolloutFrom(rollout, own), settings())),
  }));
  return { reward: functions, configurable };
}
