// Harnesses: what drives the turns of a rollout.

import { define, exportsOf, settings } from './exports.js';
import { reportToWit } from './report.js';
import { taskFrom } from './values.js';

export { blobs } from './blobs.js';
export { openBrowser } from './browser.js';
export { Conversation } from './conversation.js';
export { Failure } from './failure.js';
export { log } from './log.js';
export { random } from './random.js';
export { report } from './report.js';
export { openSandbox, waitForAny } from './sandbox.js';
export { ToolError, tool } from './tools.js';
export { openEnvironment } from './world.js';

/** A harness of `run(task, settings)`, which returns a report. */
export function harness(declared) {
  return define('harness', declared, ['run']);
}

/** The exports of its component. */
export function componentOf(plugin) {
  const { functions, configurable } = exportsOf(plugin, 'harness', ({ run }) => ({
    run: (own, task) => reportToWit(own, run(taskFrom(task, own), settings())),
  }));
  return { harness: functions, configurable };
}
