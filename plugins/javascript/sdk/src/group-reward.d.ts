import type { Plugin, Properties, TaskParts, ValuesOf } from './common.js';
import type { Rollout, Scores } from './rollout.js';

export { Failure, blobs, log, random } from './common.js';
export type { BlobRef, FailureKind, Json, Properties, Schema, Task, ValuesOf } from './common.js';
export { Conversation, ToolError, tool } from './conversation.js';
export type { Answer, Options, Said, Tool, ToolCall, Usage } from './conversation.js';
export type { Message, Rollout, Score, Scores, Step, Turn } from './rollout.js';
export { openFreshSandbox, waitForAny } from './sandbox.js';
export type { Outcome, Process, Sandbox, Shell } from './sandbox.js';

/** A group reward: scores the rollouts of a group together, before the group's filters. */
export function groupReward<const S extends Properties = {}, const T extends TaskParts = {}>(declared: {
  /** What an experiment can set, as properties of a JSON Schema. */
  settings?: S;
  /** What the plugin needs of a task. */
  task?: T;
  /** For each rollout, in their order, a number, a score, or a list of them. */
  score: (rollouts: Rollout<T>[], settings: ValuesOf<S>) => readonly Scores[];
}): Plugin<'group-reward'>;
