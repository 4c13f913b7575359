import type { Plugin, Properties, ValuesOf } from './common.js';

export { Failure, blobs, log, random } from './common.js';
export type { BlobRef, FailureKind, Json, Properties, Schema, ValuesOf } from './common.js';
export { Conversation, ToolError, tool } from './conversation.js';
export type { Answer, Options, Said, Tool, ToolCall, Usage } from './conversation.js';
export { createSandbox, waitForAny } from './sandbox.js';
export type { Outcome, Process, Sandbox, Shell } from './sandbox.js';

/** What is asked for. */
export interface Request {
  /** How many tasks, from 1. */
  count: number;
  /** Follows from the run's seed and the batch. */
  seed: number;
  /** The number of the batch, from 0. */
  batch: number;
  /** Tasks that the run has already. */
  accepted: number;
  extra: any;
}

/** How a task went. */
export interface Statistics {
  /** Rollouts of the group with a reward. */
  attempts: number;
  /** Share of them that solved it, 0 to 1. */
  accuracy: number;
  /** Mean number of turns. */
  turns: number;
  /** Endings by stop reason. */
  endings: { [reason: string]: number };
  /** Summaries of what did not solve it. */
  failures: string[];
  extra: any;
}

/** A task, as one line of a task file has it. */
export interface TaskRecord {
  id: string;
  instruction: string;
  data?: any;
  private?: any;
  [name: string]: any;
}

/** A task generator: makes tasks, and variants of them. */
export function taskGenerator<const S extends Properties = {}>(declared: {
  /** What an experiment can set, as properties of a JSON Schema. */
  settings?: S;
  /** Makes tasks; fewer than asked for may come, none says that there are none at the moment. */
  generate: (request: Request, settings: ValuesOf<S>) => TaskRecord[];
  /** Variants of a task, given how it went; none: it stays as it is. */
  adapt?: (task: TaskRecord, statistics: Statistics, settings: ValuesOf<S>) => TaskRecord[];
}): Plugin<'task-generator'>;
