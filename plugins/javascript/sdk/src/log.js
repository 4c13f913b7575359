// The rollout's log, and `console`, which writes to it.

import { write } from 'espalier:base/log@0.1.0';
import { stackOf } from './positions.js';

/** Whether an export is running: imports of the engine cannot be called while the component is built. */
let running = false;

/** From now on the engine listens. */
export function start() {
  running = true;
  if (globalThis.__espalier !== undefined) globalThis.__espalier.running = true;
}

/** Whether the engine can be called. */
export function isRunning() {
  return running;
}

function line(level, text, fields) {
  if (running) write(level, text.toWellFormed(), fields === undefined ? null : JSON.stringify(fields) ?? null);
}

/** Lines for people, kept with the rollout; `fields` is an object with more. */
export const log = {
  debug: (text, fields) => line('debug', String(text), fields),
  info: (text, fields) => line('info', String(text), fields),
  warn: (text, fields) => line('warn', String(text), fields),
  error: (text, fields) => line('error', String(text), fields),
};

/** `console` whose lines go to the rollout's log. */
export function consoleOfLog() {
  const at = (level) => (...values) => line(level, values.map(formatted).join(' '));
  const assert = (condition, ...values) => {
    if (!condition) at('error')('assertion failed', ...values);
  };
  return { debug: at('debug'), log: at('info'), info: at('info'), warn: at('warn'), error: at('error'), trace: at('debug'), assert };
}

/** A value as `console` shows it. */
export function formatted(value) {
  if (typeof value === 'string') return value;
  if (value === null || typeof value !== 'object') return typeof value === 'function' ? `[function ${value.name}]` : String(value);
  try {
    return value instanceof Error ? `${value.name}: ${value.message}${stackOf(value)}` : structure(value);
  } catch {
    // Its getters may throw.
    return value instanceof Error ? 'Error: (its name, message or stack cannot be shown)' : '[object that cannot be shown]';
  }
}

function structure(value) {
  const seen = new Set();
  const plain = (_, inner) => {
    if (typeof inner === 'bigint' || typeof inner === 'symbol' || inner === undefined) return String(inner);
    if (typeof inner === 'function') return `[function ${inner.name}]`;
    if (inner instanceof Error) return `${inner.name}: ${inner.message}`;
    if (inner instanceof Map) return Object.fromEntries(inner);
    if (inner instanceof Set) return [...inner];
    if (ArrayBuffer.isView(inner)) return `[${inner.constructor.name} of ${inner.byteLength} bytes]`;
    if (inner !== null && typeof inner === 'object') {
      if (seen.has(inner)) return '[seen above]';
      seen.add(inner);
    }
    return inner;
  };
  return JSON.stringify(value, plain);
}
