// Conversations with the models of the experiment.

import { open } from 'espalier:model/conversations@0.1.0';
import { callHost } from './failure.js';
import { jsonOf } from './json.js';
import { options, shown } from './schema.js';
import { ToolError, declaredTools } from './tools.js';
import { messageFrom, toolCallFrom } from './values.js';

const ROLES = ['system', 'user', 'assistant', 'tool'];

const OPTIONS = {
  maxTokens: { type: ['integer', 'null'], minimum: 1, default: null },
  stop: { type: 'array', items: { type: 'string' }, default: [] },
  temperature: { type: ['number', 'null'], minimum: 0, maximum: 100, default: null },
  toolChoice: { type: ['string', 'null'], default: null },
  extra: { type: ['object', 'null'], default: null },
};

/** One branch of a conversation. Messages are sent with the next answer that is asked for. */
export class Conversation {
  #model;
  #tools;
  #options;
  /** Not sent yet. */
  #pending = [];
  /** From the first answer on. */
  #open;

  /** A conversation with the model that the experiment calls so: `policy`; a judge's is `judge`. */
  constructor(model, { tools = [], ...asked } = {}) {
    this.#model = text(model, 'Conversation: the model');
    this.#tools = declaredTools(tools);
    this.#options = asked;
    optionsToWit(asked);
  }

  /** Adds a message of the system. */
  system(content) {
    return this.append({ role: 'system', text: content });
  }

  /** Adds a message of the user, with images (blobs) behind its text. */
  user(content, images = []) {
    return this.append({ role: 'user', text: content, images });
  }

  /** Adds an answer that this plugin writes itself, for examples; it does not train. */
  assistant(content) {
    return this.append({ role: 'assistant', text: content });
  }

  /** Adds the result of a tool's call. */
  toolResult(call, result, { isError = false } = {}) {
    const val = { callId: text(call?.id, 'toolResult: the id of the call'), text: text(result, 'toolResult: the result'), isError };
    this.#pending.push({ role: 'tool', parts: [{ tag: 'tool-result', val }], extra: null });
    return this;
  }

  /** Adds messages like `{ role: 'user', text: '...' }`. */
  append(...messages) {
    this.#pending.push(...messages.map(messageToWit));
    return this;
  }

  /** Samples one answer and adds it. Options given here replace those of the conversation. */
  complete(more = {}) {
    const asked = optionsToWit({ ...this.#options, ...more });
    this.#send();
    return answerFrom(callHost(() => this.#open.complete(asked)));
  }

  /** Samples `n` answers at once, each in a `conversation` of its own; this one stays without an answer. */
  completeMany(n, more = {}) {
    if (!Number.isInteger(n) || n < 1 || n > 256) throw new RangeError(`completeMany: expected 1 to 256 answers, got ${shown(n)}`);
    const asked = optionsToWit({ ...this.#options, ...more });
    this.#send();
    const branches = callHost(() => this.#open.completeMany(n, asked));
    return branches.map(({ conversation, completion }) => ({ ...answerFrom(completion), conversation: this.#branch(conversation) }));
  }

  /** Carries out the calls of an answer by the conversation's tools and adds their results. Returns how many there were. */
  runTools(answer) {
    for (const call of answer.toolCalls) {
      try {
        this.toolResult(call, this.#tools.run(call));
      } catch (error) {
        if (!(error instanceof ToolError)) throw error;
        this.toolResult(call, error.message, { isError: true });
      }
    }
    return answer.toolCalls.length;
  }

  /** A second branch with the same past. */
  fork() {
    this.#send();
    return this.#branch(callHost(() => this.#open.fork()));
  }

  /** Gives this branch up: its tokens do not train. */
  discard() {
    if (this.#open !== undefined) callHost(() => this.#open.discard());
  }

  /** Replaces the whole history, for compaction: a new training segment opens, the old one stays. */
  rewrite(messages) {
    const history = messages.map(messageToWit);
    this.#pending = [];
    if (this.#open === undefined) this.#pending = history;
    else callHost(() => this.#open.rewrite(history));
    return this;
  }

  /** Replaces all images but the last `keep` by a fixed text; returns how many. */
  elideImages(keep) {
    this.#send();
    return callHost(() => this.#open.elideImages(keep));
  }

  /** Says whether the answer at this index of the conversation may train. */
  setTrainable(index, trainable) {
    this.#send();
    callHost(() => this.#open.setTrainable(index, trainable));
  }

  /** Counters as they stand; null before the first message is sent. */
  get usage() {
    return this.#open === undefined ? null : usageFrom(callHost(() => this.#open.usage()));
  }

  #branch(opened) {
    const branch = new Conversation(this.#model, this.#options);
    branch.#tools = this.#tools;
    branch.#open = opened;
    return branch;
  }

  /** Opens the conversation, or appends what is new. */
  #send() {
    const messages = this.#pending;
    if (this.#open === undefined) this.#open = callHost(() => open(this.#model, messages, this.#tools.declared));
    else if (messages.length > 0) callHost(() => this.#open.append(messages));
    this.#pending = [];
  }
}

function text(value, what) {
  if (typeof value !== 'string') throw new TypeError(`${what}: expected a string, got ${shown(value)}`);
  if (!value.isWellFormed()) throw new TypeError(`${what}: expected text without lone surrogates, got ${shown(value)}`);
  return value;
}

function messageToWit({ role, text: content = '', images = [] }) {
  if (!ROLES.includes(role)) throw new TypeError(`role of a message: expected one of ${ROLES.join(', ')}, got ${shown(role)}`);
  const parts = [{ tag: 'text', val: text(content, `text of a message of role ${role}`) }];
  for (const image of images) parts.push({ tag: 'image', val: text(image, 'image of a message') });
  return { role, parts, extra: null };
}

function optionsToWit(given) {
  const { extra, ...asked } = options(OPTIONS, given, 'options of a conversation');
  return { ...asked, extra: extra === null ? null : jsonOf(extra, 'options of a conversation', 'extra') };
}

function usageFrom(usage) {
  return { ...usage, extra: usage.extra === null ? null : JSON.parse(usage.extra) };
}

function answerFrom({ message, toolCalls, malformed, finish, usage, extra }) {
  const more = extra === null ? {} : JSON.parse(extra);
  const { text: content } = messageFrom(message);
  return {
    text: content,
    toolCalls: toolCalls.map(toolCallFrom),
    malformed,
    finish: finish.tag === 'other' ? finish.val : finish.tag,
    usage: usageFrom(usage),
    call: more.call ?? null,
    extra: more,
  };
}
