import type { Plugin, Properties, TaskParts, ValuesOf } from './common.js';
import type { Rollout, Scores } from './rollout.js';

export { openBrowser } from './browser.js';
export type { Browser, BrowserStep, Effect, PageElement, Tab } from './browser.js';
export { Failure, blobs, log, random } from './common.js';
export type { BlobRef, FailureKind, Json, Properties, Schema, Task, ValuesOf } from './common.js';
export type { Message, Rollout, Score, Scores, Step, Turn } from './rollout.js';
export { openFreshSandbox, openSandbox, waitForAny } from './sandbox.js';
export type { Outcome, Process, Sandbox, Shell } from './sandbox.js';
export { Service } from './service.js';

/** A reward: scores one rollout. */
export function reward<const S extends Properties = {}, const T extends TaskParts = {}>(declared: {
  /** What an experiment can set, as properties of a JSON Schema. */
  settings?: S;
  /** What the plugin needs of a task. */
  task?: T;
  /** A number, a score, or a list of them. A failure leaves the rollout unscored, which is not 0. */
  score: (rollout: Rollout<T>, settings: ValuesOf<S>) => Scores;
}): Plugin<'reward'>;
