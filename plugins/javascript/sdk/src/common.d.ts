/// <reference path="./globals.d.ts" />

import type { Properties, ValuesOf } from './schema.js';

export type { Json, Properties, Schema, ValueOf, ValuesOf } from './schema.js';

/** Names large bytes that the engine keeps. */
export type BlobRef = string;

export type FailureKind = 'budget' | 'cancelled' | 'denied' | 'unavailable' | 'invalid' | 'other';

/** A failure with its kind: thrown by what calls the engine. One that leaves the plugin is returned to the engine as it is. */
export class Failure extends Error {
  constructor(kind: FailureKind, message: string, more?: { budget?: string; code?: string });
  readonly kind: FailureKind;
  /** Of a `budget`: which one, `turns`, `tokens`, `sampled-tokens`, `wall`, `host-calls`, `blob-bytes` ... */
  readonly budget?: string;
  /** Of `other`: a word for programs. */
  readonly code?: string;
  /** What was given to the plugin, or the task, is wrong. */
  static invalid(message: string): Failure;
  /** The plugin's own failure: a word for programs and a sentence for people. */
  static other(code: string, message: string): Failure;
  /** Something outside of the plugin failed: the rollout is repeated. */
  static unavailable(message: string): Failure;
}

/** Lines for people, kept with the rollout; `console` writes there too. */
export const log: {
  debug(text: string, fields?: object): void;
  info(text: string, fields?: object): void;
  warn(text: string, fields?: object): void;
  error(text: string, fields?: object): void;
};

/** Drawn by the engine, each by a host call; `Math.random` draws from a generator that the engine seeds once. */
export const random: {
  /** A number drawn evenly from 0 up to `bound`, without it. */
  below(bound: number): number;
  /** This many bytes, 64 KiB at most. */
  bytes(length: number): Uint8Array;
};

/** The blobs of the rollout. */
export const blobs: {
  /** Length in bytes and media type. */
  stat(blob: BlobRef): { length: number; mediaType: string };
  /** Up to `length` bytes, 1 MiB at most, from `offset`; empty past the end. */
  read(blob: BlobRef, offset?: number, length?: number): Uint8Array;
  /** The same as text, with replacement characters. */
  readText(blob: BlobRef, offset?: number, length?: number): string;
  /** Keeps bytes or text, 64 MiB at most; returns the reference. */
  put(content: string | Uint8Array, mediaType?: string): BlobRef;
};

/** What a plugin says of the parts of a task that it needs. A task without them ends as a failure that names the field. */
export interface TaskParts {
  /** Properties of `data`. */
  readonly data?: Properties;
  /** Properties of the private part, which rewards, judges and environments see. */
  readonly private?: Properties;
}

type Part<T, K extends string> = T extends { readonly [P in K]: infer P } ? ValuesOf<P> : any;

/** A task. */
export interface Task<T = {}> {
  /** Unique in its set. */
  id: string;
  /** What the agent is asked to do. */
  instruction: string;
  /** Name of the environment, where the task has one. */
  environment: string | null;
  /** Names of the sandboxes. */
  sandboxes: string[];
  tags: string[];
  /** The task's `data`; null where it has none. */
  data: Part<T, 'data'>;
  /** The private part: for environments, rewards and judges, and for a harness with the grant `private-task`; otherwise null. */
  private: Part<T, 'private'>;
  extra: any;
}

/** A plugin: what a module exports by default. */
export interface Plugin<Kind extends string> {
  readonly kind: Kind;
}
