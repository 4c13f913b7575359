// What rewards and judges have besides: sandboxes that no agent has touched.

import { openFresh } from 'espalier:sandbox/scoring@0.1.1';
import { callHost } from './failure.js';
import { Sandbox } from './sandbox.js';

/** A new sandbox of this name, with the task's image, files and set-up; at most 8 alive at a time. */
export function openFreshSandbox(name = 'main') {
  return new Sandbox(callHost(() => openFresh(name)));
}
