import type { BlobRef, Plugin, Properties, Task, TaskParts, ValuesOf } from './common.js';
import type { Report } from './report.js';

export { openBrowser } from './browser.js';
export type { Browser, BrowserStep, Effect, PageElement, Tab } from './browser.js';
export { Failure, blobs, log, random } from './common.js';
export type { BlobRef, FailureKind, Json, Properties, Schema, Task, ValuesOf } from './common.js';
export { Conversation, ToolError, tool } from './conversation.js';
export type { Answer, Options, Said, Tool, ToolCall, Usage } from './conversation.js';
export { report } from './report.js';
export type { Report } from './report.js';
export { openSandbox, waitForAny } from './sandbox.js';
export type { Outcome, Process, Sandbox, Shell } from './sandbox.js';

/** What the agent sees. */
export interface Observation {
  text: string;
  images: BlobRef[];
  extra: any;
}

/** What one action led to. */
export interface StepResult extends Observation {
  /** Reward of this step alone; null: the world gives none here, which is not 0. */
  reward: number | null;
  /** Whether the episode is over. */
  done: boolean;
  info: any;
}

/** The world of the rollout. */
export interface Environment {
  /** Puts the world into its first state. */
  reset(): Observation;
  /** Carries out one action, taken as it is. */
  step(action: string): StepResult;
  /** The actions possible now; empty where the world does not list them. */
  actions(): string[];
}

/** Opens the environment of the task, once in a rollout. */
export function openEnvironment(): Environment;

/** A harness: drives the turns of a rollout. */
export function harness<const S extends Properties = {}, const T extends TaskParts = {}>(declared: {
  /** What an experiment can set, as properties of a JSON Schema. */
  settings?: S;
  /** What the plugin needs of a task. */
  task?: T;
  /** Carries out one rollout. */
  run: (task: Task<T>, settings: ValuesOf<S>) => Report;
}): Plugin<'harness'>;
