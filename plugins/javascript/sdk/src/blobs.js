// Large bytes that the engine keeps, by reference.

import { put, read, readText, stat } from 'espalier:base/blobs@0.1.0';
import { callHost } from './failure.js';
import { encode } from './text.js';

const READ_MAX = 1 << 20;

/** The blobs of the rollout. */
export const blobs = {
  /** Length in bytes and media type. */
  stat: (blob) => {
    const { length, mediaType } = callHost(() => stat(blob));
    return { length, mediaType };
  },
  /** Up to `length` bytes, 1 MiB at most, from `offset`; empty past the end. */
  read: (blob, offset = 0, length = READ_MAX) => callHost(() => read(blob, offset, length)),
  /** The same as text, with replacement characters. */
  readText: (blob, offset = 0, length = READ_MAX) => callHost(() => readText(blob, offset, length)),
  /** Keeps bytes or text, 64 MiB at most; returns the reference. */
  put: (content, mediaType = typeof content === 'string' ? 'text/plain' : 'application/octet-stream') => {
    const bytes = typeof content === 'string' ? encode(content) : content;
    return callHost(() => put(bytes, mediaType));
  },
};
