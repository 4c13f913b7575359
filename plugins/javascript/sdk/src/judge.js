// Judges: what scores a rollout by a model.

import { define, exportsOf, settings } from './exports.js';
import { judgementToWit } from './scores.js';
import { rolloutFrom } from './values.js';

export { blobs } from './blobs.js';
export { openBrowser } from './browser.js';
export { Conversation } from './conversation.js';
export { Failure } from './failure.js';
export { log } from './log.js';
export { random } from './random.js';
export { openSandbox, waitForAny } from './sandbox.js';
export { openFreshSandbox } from './scoring.js';
export { Service } from './service.js';
export { ToolError, tool } from './tools.js';

/** A judge of `judge(rollout, settings)`, which returns scores and votes. */
export function judge(declared) {
  return define('judge', declared, ['judge']);
}

/** The exports of its component. */
export function componentOf(plugin) {
  const { functions, configurable } = exportsOf(plugin, 'judge', (declared) => ({
    judge: (own, rollout) => judgementToWit(own, declared.judge(rolloutFrom(rollout, own), settings())),
  }));
  return { judge: functions, configurable };
}
