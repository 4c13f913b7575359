// Random numbers that follow from the run's seed.

import { below, bytes } from 'espalier:base/random@0.1.0';
import { callHost } from './failure.js';

/** Drawn by the engine, each by a host call; `Math.random` draws from a generator that the engine seeds once. */
export const random = {
  /** A number drawn evenly from 0 up to `bound`, without it. */
  below: (bound) => callHost(() => below(bound)),
  /** This many bytes, 64 KiB at most. */
  bytes: (length) => callHost(() => bytes(length)),
};
