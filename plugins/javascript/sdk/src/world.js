// The world of the rollout, for a harness.

import { open } from 'espalier:environment/environments@0.1.0';
import { callHost } from './failure.js';
import { shown } from './schema.js';

/** Opens the environment of the task, once in a rollout. */
export function openEnvironment() {
  return new Environment(callHost(() => open()));
}

class Environment {
  #open;

  constructor(open) {
    this.#open = open;
  }

  /** Puts the world into its first state. */
  reset() {
    return observationFrom(callHost(() => this.#open.reset()));
  }

  /** Carries out one action. */
  step(action) {
    if (typeof action !== 'string') throw new TypeError(`step: the action: expected a string, got ${shown(action)}`);
    const { observation, reward, done, info } = callHost(() => this.#open.step(action));
    return { ...observationFrom(observation), reward, done, info: JSON.parse(info) };
  }

  /** The actions possible now; empty where the world does not list them. */
  actions() {
    return callHost(() => this.#open.actions());
  }
}

function observationFrom({ text, images, extra }) {
  return { text, images, extra: extra === null ? null : JSON.parse(extra) };
}
