// Task generators: what makes tasks, and variants of them.

import { define, exportsOf, json, returned, settings } from './exports.js';
import { requestFrom, statisticsFrom } from './values.js';

export { blobs } from './blobs.js';
export { Conversation } from './conversation.js';
export { createSandbox } from './creation.js';
export { Failure } from './failure.js';
export { log } from './log.js';
export { random } from './random.js';
export { waitForAny } from './sandbox.js';
export { ToolError, tool } from './tools.js';

/** A generator of `generate(request, settings)` and, where it makes variants, `adapt(task, statistics, settings)`. */
export function taskGenerator(declared) {
  return define('task-generator', declared, ['generate'], ['adapt']);
}

const TASKS = { type: 'array', items: { type: 'object' } };

function tasksToWit(own, name, tasks) {
  return returned(own, name, TASKS, tasks).map((task, at) => json(own, name, task, `[${at}]`));
}

/** The exports of its component. */
export function componentOf(plugin) {
  const { functions, configurable } = exportsOf(plugin, 'task-generator', ({ generate, adapt = () => [] }) => ({
    generate: (own, request) => tasksToWit(own, 'generate', generate(requestFrom(request), settings())),
    adapt: (own, task, statistics) =>
      tasksToWit(own, 'adapt', adapt(JSON.parse(task), statisticsFrom(statistics), settings())),
  }));
  return { taskGenerator: functions, configurable };
}
