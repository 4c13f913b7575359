// What the language has, answered by the engine: `console`, the time, random numbers. Stubbed system calls trap otherwise.

import { nowMs } from 'espalier:base/clock@0.1.0';
import { bytes } from 'espalier:base/random@0.1.0';
import { callHost } from './failure.js';
import { consoleOfLog, isRunning } from './log.js';
import { decode, encode } from './text.js';

/** Puts them into the global object. */
export function install() {
  const NativeDate = globalThis.Date;

  function Date(...args) {
    if (new.target === undefined) return new NativeDate(now()).toString();
    return Reflect.construct(NativeDate, args.length === 0 ? [now()] : args, new.target);
  }
  Object.setPrototypeOf(Date, NativeDate);
  Date.prototype = NativeDate.prototype;
  Date.prototype.constructor = Date;
  Date.now = now;

  globalThis.Date = Date;
  globalThis.performance = { now };
  globalThis.console = consoleOfLog();
  Math.random = random();
  globalThis.TextEncoder ??= class TextEncoder {
    encode(text = '') {
      return encode(text);
    }
  };
  globalThis.TextDecoder ??= class TextDecoder {
    decode(given = new Uint8Array()) {
      return decode(ArrayBuffer.isView(given) ? new Uint8Array(given.buffer, given.byteOffset, given.byteLength) : new Uint8Array(given));
    }
  };
}

/** Milliseconds since 1970 at the last host call. */
function now() {
  mustRun('the time');
  return callHost(() => nowMs());
}

/** A generator (sfc32) whose seed the engine gives at its first use: one host call for any number of draws. */
function random() {
  let state;
  return () => {
    if (state === undefined) {
      mustRun('a random number');
      const seed = callHost(() => bytes(16));
      state = new Uint32Array(seed.buffer.slice(seed.byteOffset, seed.byteOffset + 16));
      for (let round = 0; round < 12; round += 1) next(state);
    }
    return ((next(state) >>> 5) * 0x4000000 + (next(state) >>> 6)) / 2 ** 53;
  };
}

function next(state) {
  const [a, b, c, counter] = state;
  const drawn = (a + b + counter) >>> 0;
  state[0] = b ^ (b >>> 9);
  state[1] = c + (c << 3);
  state[2] = ((c << 21) | (c >>> 11)) + drawn;
  state[3] = counter + 1;
  return drawn;
}

function mustRun(what) {
  if (!isRunning()) {
    throw new Error(`${what} was asked for while the plugin is built: code outside of functions runs once, at the build`);
  }
}
