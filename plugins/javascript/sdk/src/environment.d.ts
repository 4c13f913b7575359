import type { BlobRef, Json, Plugin, Properties, Task, TaskParts, ValuesOf } from './common.js';

export { Failure, log, random } from './common.js';
export type { BlobRef, FailureKind, Json, Properties, Schema, Task, ValuesOf } from './common.js';

/** What the agent sees. */
export interface Observation {
  text: string;
  images?: BlobRef[];
  extra?: object | null;
}

/** What one action led to. */
export interface StepResult extends Observation {
  /** Reward of this step alone; null, the default: the world gives none here, which is not 0. */
  reward?: number | null;
  /** Whether the episode is over. */
  done?: boolean;
  /** Facts for rewards and people. */
  info?: Json;
}

/** The world of one rollout, with what is seen first. */
export interface World extends Observation {
  /** Carries out one action; a text alone is what is seen. One that the world refuses is an observation, not a failure. */
  step(action: string): StepResult | string;
  /** The actions possible now; left out where the world does not list them. */
  actions?(): string[];
  /** The episode is over. */
  close?(): void;
}

/** An environment: a small simulated world. */
export function environment<const S extends Properties = {}, const T extends TaskParts = {}>(declared: {
  /** What an experiment can set, as properties of a JSON Schema. */
  settings?: S;
  /** What the plugin needs of a task. */
  task?: T;
  /** Starts the episode of this task, or starts it again. */
  reset: (task: Task<T>, settings: ValuesOf<S>) => World;
}): Plugin<'environment'>;
