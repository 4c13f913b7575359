// Services that the engine answers itself, for rewards and judges.

import { request } from 'espalier:service/services@0.1.0';
import { Failure, callHost } from './failure.js';
import { jsonOf } from './json.js';
import { decode, encode } from './text.js';

const SHOWN_MAX = 500;

/** A service of the rollout, asked with the engine's key. */
export class Service {
  #name;

  /** The service that the task names so in `services`. */
  constructor(name) {
    this.#name = String(name);
  }

  /** What `GET` of a path answers, as JSON. A status of 400 or more is an `invalid` failure with what the service says. */
  get(path) {
    return this.#json(path, this.request('GET', path));
  }

  /** What `POST` to a path answers, as JSON; failures as those of `get`. */
  post(path, body = {}) {
    return this.#json(path, this.request('POST', path, jsonOf(body, `${this.#name}${path}`)));
  }

  /** The answer as it is: whatever its status, with a body of bytes. */
  request(method, path, body = '') {
    const bytes = typeof body === 'string' ? encode(body) : body;
    const { extra, ...response } = callHost(() => request(this.#name, method, path, bytes));
    return { ...response, extra: extra === null ? null : JSON.parse(extra) };
  }

  #json(path, { status, body }) {
    const text = decode(body);
    const shown = [...text].slice(0, SHOWN_MAX).join('');
    if (status >= 400) throw Failure.invalid(`${this.#name}${path}: status ${status}: ${shown}`);
    try {
      return JSON.parse(text);
    } catch (error) {
      throw Failure.invalid(`${this.#name}${path}: ${error.message}: ${shown}`);
    }
  }
}
