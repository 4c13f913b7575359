// What the engine of JavaScript has besides the language: no timers, no network, no files.

interface Console {
  debug(...values: unknown[]): void;
  log(...values: unknown[]): void;
  info(...values: unknown[]): void;
  warn(...values: unknown[]): void;
  error(...values: unknown[]): void;
  trace(...values: unknown[]): void;
  assert(condition?: unknown, ...values: unknown[]): void;
}

/** Writes to the rollout's log. */
declare var console: Console;

/** UTF-8. */
declare class TextEncoder {
  encode(text?: string): Uint8Array;
}

/** UTF-8. */
declare class TextDecoder {
  decode(bytes?: ArrayBuffer | ArrayBufferView): string;
}

declare var performance: { now(): number };
