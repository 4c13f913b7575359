import type { Plugin, Properties, TaskParts, ValuesOf } from './common.js';
import type { Rollout, Scores } from './rollout.js';

export { openBrowser } from './browser.js';
export type { Browser, BrowserStep, Effect, PageElement, Tab } from './browser.js';
export { Failure, blobs, log, random } from './common.js';
export type { BlobRef, FailureKind, Json, Properties, Schema, Task, ValuesOf } from './common.js';
export { Conversation, ToolError, tool } from './conversation.js';
export type { Answer, Options, Said, Tool, ToolCall, Usage } from './conversation.js';
export type { Message, Rollout, Score, Scores, Step, Turn } from './rollout.js';
export { openFreshSandbox, openSandbox, waitForAny } from './sandbox.js';
export type { Outcome, Process, Sandbox, Shell } from './sandbox.js';
export { Service } from './service.js';

/** One evaluation of one turn, or of the outcome. */
export interface Vote {
  /** The turn it is about; null, the default: the outcome. */
  turn?: number | null;
  /** Null: the evaluation could not be parsed. */
  value: number | null;
  /** What the judge wrote, for people. */
  text?: string;
  /** `call` of the answer that it was read from: where the judge is trained, the vote's reward trains its tokens. */
  call?: string | null;
  extra?: object | null;
}

/** What a judge gives. */
export interface Judgement {
  scores: Scores;
  votes?: Vote[];
  extra?: object | null;
}

/** A judge: scores by a model, which is `judge` to `new Conversation`. */
export function judge<const S extends Properties = {}, const T extends TaskParts = {}>(declared: {
  /** What an experiment can set, as properties of a JSON Schema. */
  settings?: S;
  /** What the plugin needs of a task. */
  task?: T;
  /** Scores and votes. A failure leaves the rollout unjudged, which is not 0. */
  judge: (rollout: Rollout<T>, settings: ValuesOf<S>) => Judgement;
}): Plugin<'judge'>;
