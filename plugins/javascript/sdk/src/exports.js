// What stands between the engine and a plugin's functions: settings, values on their way in and out, errors.

import { get as getSettings } from 'espalier:base/settings@0.1.0';
import { FAILURES, callHost } from './failure.js';
import { jsonOf } from './json.js';
import { formatted, log, start } from './log.js';
import { checked, objectSchema, shown } from './schema.js';

/** A plugin of this kind, of what its author declared. `functions` must be there, `optional` may be. */
export function define(kind, declared, functions, optional = []) {
  if (declared === null || typeof declared !== 'object') {
    throw new TypeError(`${kind}: expected an object with ${functions.join(' and ')}, got ${shown(declared)}`);
  }
  const known = ['settings', 'task', ...functions, ...optional];
  const unknown = Object.keys(declared).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new TypeError(`${kind}: \`${unknown}\` is unknown; there is: ${known.join(', ')}`);
  for (const name of [...functions, ...optional]) {
    const given = declared[name];
    if (typeof given === 'function' || (given === undefined && optional.includes(name))) continue;
    throw new TypeError(`${kind}: \`${name}\`: expected a function, got ${shown(given)}`);
  }
  const part = (name) => {
    const properties = declared.task?.[name];
    return properties === undefined ? undefined : { ...objectSchema(properties, `task.${name}`), additionalProperties: true };
  };
  return {
    kind,
    declared,
    settings: objectSchema(declared.settings ?? {}, 'settings'),
    task: { data: part('data'), private: part('private') },
    // Where the author declared it: named where a value that is returned is wrong.
    stack: new Error().stack,
  };
}

/** The exports of a component: the interface of its kind, and its settings. Called while the component is built. */
export function exportsOf(plugin, kind, functions) {
  if (plugin?.kind !== kind) {
    const got = plugin === undefined ? 'no default export' : plugin?.kind ? `a plugin of kind ${plugin.kind}` : shown(plugin);
    throw new TypeError(`expected \`export default\` of a plugin made by a function of 'espalier-sdk/${kind}', got ${got}`);
  }
  const made = functions(plugin.declared);
  const guarded = Object.entries(made).map(([name, call]) => [name, (...given) => answer(plugin, call, given)]);
  return {
    functions: Object.fromEntries(guarded),
    configurable: { settingsSchema: () => JSON.stringify(plugin.settings) },
  };
}

function answer(plugin, call, given) {
  start();
  try {
    return call(plugin, ...given);
  } catch (error) {
    const wit = failureIn(error);
    if (wit !== undefined) throw wit;
    log.error(error instanceof Error ? formatted(error) : `uncaught ${shown(error)}, which is not an Error${thrownAt(error)}`);
    throw error;
  }
}

/** The failure that was thrown, or that of an import which was called without this package; undefined for anything else. */
function failureIn(thrown) {
  try {
    const wit = typeof thrown?.toWit === 'function' ? thrown.toWit() : thrown?.payload;
    return FAILURES.includes(wit?.tag) ? wit : undefined;
  } catch {
    return undefined;
  }
}

/** Where a value without a stack was thrown, as far as the build has noted it. */
function thrownAt(value) {
  const noted = globalThis.__espalier?.thrown;
  return noted !== undefined && noted.value === value ? `\n    at ${noted.place}` : '';
}

/** The experiment's settings, checked by the engine. */
export function settings() {
  return JSON.parse(callHost(() => getSettings()));
}

/** What a plugin's function returned, as the schema wants it. Throws an error at the place where the plugin was declared. */
export function returned(plugin, name, schema, value) {
  if (typeof value?.then === 'function') {
    throw placed(plugin, new TypeError(`${name} returned a promise: plugins are synchronous; remove \`async\``));
  }
  try {
    return checked(schema, value, `${name} returned a wrong value`);
  } catch (error) {
    throw placed(plugin, error);
  }
}

/** JSON text of something that a plugin returned, at this place in what its function returned. */
export function json(plugin, name, value, path) {
  try {
    return jsonOf(value ?? null, `${name} returned a wrong value`, path);
  } catch (error) {
    throw placed(plugin, error);
  }
}

/** JSON text, or none. */
export function optionalJson(plugin, name, value, path) {
  return value === undefined || value === null ? null : json(plugin, name, value, path);
}

/** What is wrong with a value, at the place where the plugin was declared; a getter of the value may have thrown anything. */
function placed(plugin, thrown) {
  const error = new TypeError(thrown instanceof Error ? thrown.message : `uncaught ${shown(thrown)}, which is not an Error`);
  error.stack = plugin.stack;
  return error;
}
