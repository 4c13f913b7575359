import type { BlobRef } from './common.js';
import type { Json, Properties, ValuesOf } from './schema.js';

/** Thrown by a tool: its text is what the model is told. */
export class ToolError extends Error {}

/** A tool that a model may call. */
export interface Tool {
  readonly name: string;
  readonly description: string;
  readonly parameters: object;
  readonly run: (values: any) => Json | undefined;
}

/**
 * A tool. `run` gets the arguments, checked and with defaults; what it returns is shown to the model, JSON unless it is text. An
 * unknown tool, wrong arguments and a `ToolError` are told to the model.
 */
export function tool<const P extends Properties = {}>(declared: {
  name: string;
  description?: string;
  parameters?: P;
  run: (values: ValuesOf<P>) => Json | undefined;
}): Tool;

/** A call of a tool by the model. */
export interface ToolCall {
  /** Unique in the conversation. */
  id: string;
  name: string;
  arguments: any;
}

/** How answers are asked for; what is left out is as the experiment's `sampling` says. */
export interface Options {
  /** Most tokens to sample, from 1. */
  maxTokens?: number | null;
  /** Texts that end the answer; they are not part of it. */
  stop?: string[];
  /** 0 is greedy. */
  temperature?: number | null;
  /** `auto`, `none`, `required`, or the name of a tool. */
  toolChoice?: string | null;
}

/** Counters of a conversation. */
export interface Usage {
  /** Tokens of the context as it stands. */
  promptTokens: number;
  sampledTokens: number;
  /** Answers. */
  turns: number;
  tokensLeft: number | null;
  turnsLeft: number | null;
  extra: any;
}

/** One answer. */
export interface Answer {
  /** Its text, calls of tools included as the model wrote them. */
  text: string;
  /** The calls that were parsed. */
  toolCalls: ToolCall[];
  /** Why a call could not be parsed. */
  malformed: string | null;
  /** Why it ended: `stop`, `length`, `tool-calls`, `filtered` ... */
  finish: string;
  usage: Usage;
  /** Names it in the votes of a judge. */
  call: string | null;
  extra: any;
}

/** A message that a plugin writes. */
export interface Said {
  role: 'system' | 'user' | 'assistant';
  text: string;
  images?: BlobRef[];
}

/** One branch of a conversation. Messages are sent with the next answer that is asked for. */
export class Conversation {
  /** A conversation with the model that the experiment calls so: `policy`; a judge's is `judge`. */
  constructor(model: string, options?: Options & { tools?: readonly Tool[] });
  /** Adds a message of the system. */
  system(text: string): this;
  /** Adds a message of the user, with images behind its text. */
  user(text: string, images?: BlobRef[]): this;
  /** Adds an answer that this plugin writes itself, for examples; it does not train. */
  assistant(text: string): this;
  /** Adds the result of a tool's call. */
  toolResult(call: ToolCall, text: string, more?: { isError?: boolean }): this;
  /** Adds messages. */
  append(...messages: Said[]): this;
  /** Samples one answer and adds it. Options given here replace those of the conversation. */
  complete(options?: Options): Answer;
  /** Samples `n` answers at once, 1 to 256, each in a `conversation` of its own; this one stays without an answer. */
  completeMany(n: number, options?: Options): (Answer & { conversation: Conversation })[];
  /** Carries out the calls of an answer by the conversation's tools and adds their results. Returns how many there were. */
  runTools(answer: Answer): number;
  /** A second branch with the same past. */
  fork(): Conversation;
  /** Gives this branch up: its tokens do not train. */
  discard(): void;
  /** Replaces the whole history, for compaction: a new training segment opens, the old one stays. */
  rewrite(messages: Said[]): this;
  /** Replaces all images but the last `keep` by a fixed text; returns how many. */
  elideImages(keep: number): number;
  /** Says whether the answer at this index of the conversation may train. */
  setTrainable(index: number, trainable: boolean): void;
  /** Counters as they stand; null before the first message is sent. */
  readonly usage: Usage | null;
}
