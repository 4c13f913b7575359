import type { BlobRef, Task } from './common.js';
import type { ToolCall } from './conversation.js';
import type { Report } from './report.js';

/** A message of a finished rollout. */
export interface Message {
  role: 'system' | 'user' | 'assistant' | 'tool';
  text: string;
  /** Texts over 64 KiB. */
  textBlobs: BlobRef[];
  images: BlobRef[];
  parts: { tag: string; val: any }[];
  extra: any;
}

/** One answer of the policy and what followed it. */
export interface Turn {
  /** From 0. */
  index: number;
  text: string;
  message: Message;
  toolCalls: ToolCall[];
  /** Messages behind it, up to the next answer. */
  answers: Message[];
  extra: any;
}

/** One step in the environment. */
export interface Step {
  /** The policy's last turn when it was taken. */
  turn: number;
  action: string;
  /** Cut to 64 KiB; then `observationBlob` has the whole. */
  observation: string;
  observationBlob: BlobRef | null;
  reward: number | null;
  done: boolean;
  info: any;
  extra: any;
}

/** A finished rollout. */
export interface Rollout<T = {}> {
  /** Unique in the store. */
  id: string;
  /** With its private part. */
  task: Task<T>;
  /** `completed`, `truncated`, `time-exceeded`. */
  status: string;
  /** `submitted`, `gave-up`, `limit-turns` ... */
  stopReason: string;
  report: Required<Report> | null;
  /** The final answer of the report. */
  answer: string | null;
  turns: Turn[];
  steps: Step[];
  /** By name. */
  blobs: { [name: string]: BlobRef };
  /** For rewards `judges`, for rewards of groups `reward`, `scores` and `judges` too. */
  extra: any;
}

/** One score. */
export interface Score {
  /** The one named `reward`, the default, gets the experiment's weight. */
  name?: string;
  value: number;
  /** The turn it is about, if it is about one. */
  turn?: number | null;
  /** Why, for people. */
  reason?: string;
  extra?: object | null;
}

/** A number is the score `reward`. */
export type Scores = number | Score | readonly (number | Score)[];
