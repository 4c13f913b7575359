// A plugin as the engine calls it, with imports that a test answers.

import { readFileSync } from 'node:fs';

/** The exports of a plugin, and what it wrote to the log. `imports` has functions by interface. */
export async function open(kind, plugin, { settings = {}, ...imports } = {}) {
  const lines = [];
  globalThis.espalierHost = {
    'espalier:base/settings': { get: () => JSON.stringify(settings) },
    'espalier:base/log': { write: (level, text) => lines.push(`${level}: ${text}`) },
    'espalier:base/random': { bytes: (length) => new Uint8Array(length).fill(7) },
    ...imports,
  };
  const { componentOf } = await import(`../sdk/src/${kind}.js`);
  return { ...componentOf(plugin), lines };
}

/** The plugin of a template. */
export async function template(language, kind) {
  const end = language === 'javascript' ? 'js' : 'ts';
  return import(`../../templates/${language}/${kind}/plugin.${end}`);
}

/** A task as the engine gives it. */
export function task(more = {}) {
  const { data = null, private: hidden = null, ...rest } = more;
  return {
    id: 't',
    instruction: 'Do it.',
    environment: null,
    sandboxes: [],
    tags: [],
    extra: null,
    ...rest,
    data: JSON.stringify(data),
    privateData: JSON.stringify(hidden),
  };
}

/** A finished rollout as the engine gives it. */
export function rollout({ answer, turns = [], task: of } = {}) {
  const text = (role, val) => ({ role, parts: [{ tag: 'text', val }], extra: null });
  return {
    rolloutId: 'r',
    task: task(of),
    status: 'completed',
    stopReason: 'submitted',
    report: answer === undefined ? null : { outcome: { tag: 'submitted' }, answer, data: '{"a":1}', extra: null },
    turns: turns.map((val, index) => ({ index, message: text('assistant', val), toolCalls: [], answers: [], extra: null })),
    steps: [],
    blobs: [['patch', 'b1']],
    extra: null,
  };
}

/** A model that gives these answers; what it is told is kept in `said`. */
export function model(...answers) {
  const said = [];
  const completion = (given) => ({
    message: { role: 'assistant', parts: [{ tag: 'text', val: given.text ?? given }], extra: null },
    toolCalls: given.toolCalls ?? [],
    malformed: null,
    finish: { tag: 'stop' },
    usage: { promptTokens: 1, sampledTokens: 1, turns: 1, tokensLeft: null, turnsLeft: null, extra: null },
    extra: JSON.stringify({ call: `c${said.length}` }),
  });
  const conversation = {
    append: (messages) => said.push(...messages),
    complete: (options) => (said.push(options), completion(answers.shift())),
    completeMany: (n) => answers.splice(0, n).map((given) => ({ conversation: {}, completion: completion(given) })),
  };
  const opened = (name, messages, tools) => {
    said.push({ opened: name, tools }, ...messages);
    return conversation;
  };
  return { said, imports: { 'espalier:model/conversations': { open: opened } } };
}

/** The text of a file beside the tests. */
export const read = (name) => readFileSync(new URL(name, import.meta.url), 'utf8');
