// Browsers to act in: tabs of Chromium with tools for agents, descriptions of pages, screenshots.

import { open } from 'espalier:browser/browsers@0.1.0';
import { callHost } from './failure.js';
import { jsonOf } from './json.js';
import { options, shown } from './schema.js';

const FLAG = { type: 'boolean', default: false };

const SNAPSHOT = {
  tokensMax: { type: ['integer', 'null'], minimum: 1, default: null },
  changes: FLAG,
  wholePage: FLAG,
};

const SCREENSHOT = {
  format: { enum: ['png', 'jpeg', 'webp'], default: 'png' },
  quality: { type: ['integer', 'null'], minimum: 1, maximum: 100, default: null },
  scale: { type: ['number', 'null'], default: null },
  fullPage: FLAG,
};

/** The browser of this name, as the task names it; the first call starts it, at its start page. */
export function openBrowser(name = 'main') {
  return new Browser(callHost(() => open(name)));
}

/** A browser of the rollout. */
class Browser {
  #open;

  constructor(open) {
    this.#open = open;
  }

  /** The tools that the experiment gives the model in this browser, for a conversation. */
  tools() {
    const tools = callHost(() => this.#open.tools());
    return tools.map(({ name, description, parameters }) =>
      Object.freeze({ name, description, parameters: JSON.parse(parameters), run: (values) => this.tool(name, values).text }),
    );
  }

  /** Carries out calls of the model one after another, 32 at most. One step for each. */
  act(calls) {
    if (!Array.isArray(calls)) throw new TypeError(`act: expected a list of calls of tools, got ${shown(calls)}`);
    const actions = calls.map(({ name, arguments: given = {} }, at) => ({ name, arguments: jsonOf(given, `act: call ${at}`, 'arguments') }));
    return callHost(() => this.#open.act(actions)).map(stepFrom);
  }

  /** Carries out one tool with arguments of the plugin's own. */
  tool(name, values = {}) {
    return this.act([{ name, arguments: values }])[0];
  }

  /** The tabs. */
  tabs() {
    return callHost(() => this.#open.tabs()).map(withExtra);
  }

  /** The active tab as text, with references that are good until the next one. */
  snapshot(more) {
    const asked = { ...options(SNAPSHOT, more, 'snapshot'), extra: null };
    return withExtra(callHost(() => this.#open.snapshot(asked)));
  }

  /** The active tab as a picture. */
  screenshot(more) {
    const asked = { ...options(SCREENSHOT, more, 'screenshot'), extra: null };
    return withExtra(callHost(() => this.#open.screenshot(asked)));
  }

  /**
   * Value of an expression where the page's own scripts run. The page can forge it: a reward uses `evaluateIsolated`, or asks the
   * page's server.
   */
  evaluate(expression) {
    return JSON.parse(callHost(() => this.#open.evaluate(expression, 'page')));
  }

  /** The same in a world of its own on the same document. */
  evaluateIsolated(expression) {
    return JSON.parse(callHost(() => this.#open.evaluate(expression, 'isolated')));
  }

  /** Cookies and the local storage of each origin. */
  storageState() {
    return JSON.parse(callHost(() => this.#open.storageState()));
  }

  /** Lets the handle go; the browser stays until the rollout is scored. */
  [Symbol.dispose]() {
    this.#open[Symbol.dispose]();
  }
}

function withExtra({ extra, ...known }) {
  return { ...known, extra: extra === null ? null : JSON.parse(extra) };
}

function stepFrom({ outcome: { tag, val }, element, meanwhile, effects, ...step }) {
  const of = (one) => (tag === one ? val : null);
  return {
    ...withExtra(step),
    done: tag === 'done',
    outcome: tag,
    problem: of('failed'),
    skipped: of('skipped'),
    ended: of('ended'),
    asked: of('asked'),
    other: tag === 'other' ? JSON.parse(val) : null,
    element: element === null ? null : withExtra(element),
    meanwhile: meanwhile.map(effectFrom),
    effects: effects.map(effectFrom),
  };
}

/** An effect as one object, whose `kind` says which. */
function effectFrom({ tag: kind, val }) {
  switch (kind) {
    case 'blocked':
      return { kind, url: val };
    case 'tab-opened':
      return { kind, ...withExtra(val) };
    case 'tab-closed':
      return { kind, index: val };
    case 'dialog': {
      const { kind: dialog, ...more } = val;
      return { kind, dialog, ...more };
    }
    case 'console-errors':
      return { kind, count: val[0], first: val[1] };
    case 'changed':
      return { kind, summary: val };
    case 'other':
      return { kind, value: JSON.parse(val) };
    default:
      return { kind, ...val };
  }
}
