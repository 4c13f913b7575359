// Environments: small simulated worlds.

import { define, exportsOf, optionalJson, json, returned, settings } from './exports.js';
import { Failure } from './failure.js';
import { taskFrom } from './values.js';

export { Failure };
export { log } from './log.js';
export { random } from './random.js';

/** An environment of `reset(task, settings)`, which returns the world: what is seen first (`text`), and its `step(action)`. */
export function environment(declared) {
  return define('environment', declared, ['reset']);
}

const SEEN = {
  text: { type: 'string' },
  images: { type: 'array', items: { type: 'string' }, default: [] },
  extra: { type: ['object', 'null'], default: null },
};

const WORLD = { type: 'object', properties: SEEN, required: ['text'] };

const STEP = {
  type: 'object',
  properties: {
    ...SEEN,
    reward: { type: ['number', 'null'], default: null },
    done: { type: 'boolean', default: false },
    info: { default: null },
  },
  required: ['text'],
  additionalProperties: false,
};

const ACTIONS = { type: 'array', items: { type: 'string' } };

function observationToWit(own, name, { text, images, extra }) {
  return { text, images, extra: optionalJson(own, name, extra, 'extra') };
}

/** The exports of its component. */
export function componentOf(plugin) {
  let world = null;
  const opened = (name) => {
    if (world === null) throw Failure.invalid(`${name} before reset`);
    return world;
  };
  const { functions, configurable } = exportsOf(plugin, 'environment', ({ reset }) => ({
    reset: (own, task) => {
      const made = reset(taskFrom(task, own), settings());
      const seen = returned(own, 'reset', WORLD, made);
      returned(own, 'reset', { type: 'object', properties: { step: { type: 'function' } }, required: ['step'] }, { step: made.step });
      world = made;
      return observationToWit(own, 'reset', seen);
    },
    step: (own, action) => {
      const result = opened('step').step(action);
      const { reward, done, info, ...seen } = returned(own, 'step', STEP, typeof result === 'string' ? { text: result } : result);
      return { observation: observationToWit(own, 'step', seen), reward, done, info: json(own, 'step', info, 'info'), extra: null };
    },
    actions: (own) => returned(own, 'actions', ACTIONS, opened('actions').actions?.() ?? []),
    close: () => {
      world?.close?.();
      world = null;
    },
  }));
  return { provider: functions, configurable };
}
