// What task generators have besides: sandboxes of their own.

import { create } from 'espalier:sandbox/creation@0.1.1';
import { callHost } from './failure.js';
import { jsonOf } from './json.js';
import { Sandbox } from './sandbox.js';

/** A new sandbox as `spec` says, with the keys that a task has of a sandbox; at most 8 alive at a time. */
export function createSandbox(spec) {
  return new Sandbox(callHost(() => create(jsonOf(spec, 'createSandbox'))));
}
