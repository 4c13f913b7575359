// Failures: what an import of the engine can fail with, and what a plugin can return instead of a result.

const BUDGETS = {
  turns: 'the budget of turns is used up',
  tokens: 'the budget of tokens is used up',
  'sampled-tokens': 'the budget of sampled tokens is used up',
  wall: 'the time of the rollout is used up',
  'host-calls': 'the budget of host calls is used up',
  'blob-bytes': 'the budget of blob bytes is used up',
};

/** The kinds of failures. */
export const FAILURES = ['budget', 'cancelled', 'denied', 'unavailable', 'invalid', 'other'];

/** A failure with its kind. One that leaves the plugin is returned to the engine as it is. */
export class Failure extends Error {
  #wit;

  constructor(kind, message, more = {}) {
    super(String(message).toWellFormed());
    this.name = 'Failure';
    this.kind = kind;
    if (kind === 'budget') this.budget = more.budget ?? 'other';
    if (kind === 'other') this.code = more.code?.toWellFormed() ?? 'other';
    this.#wit = more.wit ?? witOf(this);
  }

  /** What was given to the plugin, or the task, is wrong. */
  static invalid(message) {
    return new Failure('invalid', message);
  }

  /** The plugin's own failure: a word for programs and a sentence for people. */
  static other(code, message) {
    return new Failure('other', message, { code: String(code) });
  }

  /** Something outside of the plugin failed: the rollout is repeated. */
  static unavailable(message) {
    return new Failure('unavailable', message);
  }

  /** The failure as the engine has it. */
  toWit() {
    return this.#wit;
  }
}

function witOf({ kind, message, budget, code }) {
  if (kind === 'cancelled') return { tag: kind };
  if (kind === 'budget') return { tag: kind, val: budget in BUDGETS ? { tag: budget } : { tag: 'other', val: message } };
  if (kind === 'other') return { tag: kind, val: { code, text: message } };
  if (kind === 'denied' || kind === 'unavailable' || kind === 'invalid') return { tag: kind, val: message };
  throw new TypeError(`unknown kind of failure \`${kind}\``);
}

/** The failure that an import threw; anything else is left as it is. */
export function failureFrom(error) {
  const wit = error?.payload;
  switch (wit?.tag) {
    case 'budget':
      return new Failure('budget', BUDGETS[wit.val.tag] ?? wit.val.val, { budget: wit.val.tag, wit });
    case 'cancelled':
      return new Failure('cancelled', 'the rollout is being stopped', { wit });
    case 'denied':
    case 'unavailable':
    case 'invalid':
      return new Failure(wit.tag, wit.val, { wit });
    case 'other':
      return new Failure('other', wit.val.text, { code: wit.val.code, wit });
    default:
      return error;
  }
}

/** Calls an import: its failures become `Failure`s, with the stack of the caller. */
export function callHost(call) {
  try {
    return call();
  } catch (error) {
    throw failureFrom(error);
  } finally {
    globalThis.__espalier?.called();
  }
}
