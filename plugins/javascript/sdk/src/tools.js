// Tools that a model may call, declared from a function and the schema of its arguments.

import { jsonOf } from './json.js';
import { checked, objectSchema, shown } from './schema.js';

/** Thrown by a tool: its text is what the model is told. */
export class ToolError extends Error {
  constructor(message) {
    super(message);
    this.name = 'ToolError';
  }
}

/** A tool. `run` gets the arguments, checked and with defaults; what it returns is shown to the model, JSON unless it is text. */
export function tool({ name, description = '', parameters = {}, run }) {
  if (typeof name !== 'string' || name === '') throw new TypeError(`tool: \`name\`: expected a name, got ${shown(name)}`);
  if (typeof run !== 'function') throw new TypeError(`tool ${name}: \`run\`: expected a function, got ${shown(run)}`);
  return Object.freeze({ name, description, parameters: objectSchema(parameters, `tool ${name}: parameters`), run });
}

/** Tools as the engine wants them, and the way to run a call. */
export function declaredTools(tools) {
  const byName = new Map(tools.map((one) => [one.name, one]));
  const declared = tools.map(({ name, description, parameters }) => ({ name, description, parameters: JSON.stringify(parameters) }));
  return { declared, run: (call) => runCall(byName, call) };
}

function runCall(byName, { name, arguments: given }) {
  const called = byName.get(name);
  if (called === undefined) throw new ToolError(`unknown tool \`${name}\`; there is: ${[...byName.keys()].join(', ') || 'none'}`);
  let values;
  try {
    values = checked(called.parameters, given, 'invalid arguments');
  } catch (error) {
    throw new ToolError(error.message);
  }
  const result = called.run(values);
  if (typeof result === 'string' || result === undefined) return result ?? '';
  if (typeof result?.then === 'function') throw new TypeError(`tool ${name} returned a promise: plugins are synchronous; remove \`async\``);
  return jsonOf(result, `tool ${name} returned a wrong value`);
}
