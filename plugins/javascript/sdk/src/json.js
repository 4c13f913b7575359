// JSON of what a plugin gives away. What JSON would lose or change is an error that names its place.

import { shown } from './schema.js';

/** As it was before an author's file may have replaced it. */
const { stringify } = JSON;

const EXPECTED = 'null, a boolean, a finite number, a string, a list or a plain object';

/** JSON text of a value. Properties that are undefined are left out. Throws a `TypeError` that begins with `where` and names the field. */
export function jsonOf(value, where, path = '') {
  check(value, where, path, []);
  return stringify(value);
}

function check(value, where, path, above) {
  const wrong = (got) => {
    throw new TypeError(`${where}: ${path === '' ? '' : `\`${path}\`: `}expected ${EXPECTED}, got ${got}`);
  };
  if (typeof value === 'string' && !value.isWellFormed()) wrong(`${shown(value)}, which has lone surrogates`);
  if (value === null || typeof value === 'string' || typeof value === 'boolean' || Number.isFinite(value)) return;
  if (typeof value === 'bigint') wrong(`${value}n`);
  if (typeof value !== 'object') wrong(shown(value));
  if (value instanceof Date && Number.isNaN(value.getTime())) wrong('an invalid date');
  if (typeof value.toJSON === 'function') return check(value.toJSON(), where, path, above);
  if (above.includes(value)) wrong('an object that contains itself');
  const inside = [...above, value];
  if (Array.isArray(value)) {
    for (let at = 0; at < value.length; at += 1) check(value[at], where, `${path}[${at}]`, inside);
    return;
  }
  const entries = Object.entries(value);
  if (!isPlain(value) && (entries.length === 0 || value instanceof Error || ArrayBuffer.isView(value))) {
    wrong(`an object of the class ${value.constructor?.name ?? 'unknown'}`);
  }
  for (const [name, entry] of entries) {
    if (!name.isWellFormed()) wrong(`the key ${shown(name)}, which has lone surrogates`);
    if (entry !== undefined) check(entry, where, path === '' ? name : `${path}.${name}`, inside);
  }
}

function isPlain(value) {
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}
