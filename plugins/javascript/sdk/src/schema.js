// JSON Schemas of settings, task data and tools, declared as plain objects; and the check of a value against one.

/** A complete schema of an object with these properties: those without a default are required, and no others are allowed. */
export function objectSchema(properties, where = 'schema') {
  if (properties === null || typeof properties !== 'object') {
    throw new TypeError(`${where}: expected an object of properties, got ${shown(properties)}`);
  }
  const completed = {};
  for (const [name, schema] of Object.entries(properties)) completed[name] = complete(schema, `${where}.${name}`);
  const required = Object.keys(completed).filter((name) => !Object.hasOwn(completed[name], 'default'));
  const object = { type: 'object', properties: completed, additionalProperties: false };
  return required.length > 0 ? { ...object, required } : object;
}

function complete(schema, where) {
  if (schema === null || typeof schema !== 'object') {
    throw new TypeError(`${where}: expected a schema like { type: 'string' }, got ${shown(schema)}`);
  }
  const completed = { ...schema };
  if (schema.properties !== undefined && schema.required === undefined) {
    Object.assign(completed, { ...objectSchema(schema.properties, where), ...pick(schema, 'type', 'additionalProperties') });
  }
  if (schema.items !== undefined) completed.items = complete(schema.items, `${where}.items`);
  return completed;
}

function pick(object, ...names) {
  return Object.fromEntries(names.filter((name) => Object.hasOwn(object, name)).map((name) => [name, object[name]]));
}

const WORDS = {
  string: 'a string',
  integer: 'an integer',
  number: 'a number',
  boolean: 'true or false',
  array: 'a list',
  object: 'an object',
  null: 'null',
  function: 'a function',
};

/** `value` as the schema wants it, with defaults filled in. Throws an `Error` whose text begins with `where` and names the field. */
export function checked(schema, value, where) {
  const problems = [];
  const found = visit(schema, value, '', problems);
  if (problems.length > 0) throw new Error(`${where}: ${problems[0]}`);
  return found;
}

function visit(schema, value, path, problems) {
  const wrong = (expected) => {
    problems.push(`${path === '' ? '' : `\`${path}\`: `}expected ${expected}, got ${shown(value)}`);
    return value;
  };
  if (schema.const !== undefined && !same(schema.const, value)) return wrong(JSON.stringify(schema.const));
  if (schema.enum !== undefined && !schema.enum.some((one) => same(one, value))) {
    return wrong(`one of ${schema.enum.map((one) => JSON.stringify(one)).join(', ')}`);
  }
  if (schema.type !== undefined) {
    const types = Array.isArray(schema.type) ? schema.type : [schema.type];
    if (!types.some((type) => isOf(type, value))) return wrong(types.map((type) => WORDS[type] ?? type).join(' or '));
  }
  if (typeof value === 'number') {
    if (schema.minimum !== undefined && value < schema.minimum) return wrong(`at least ${schema.minimum}`);
    if (schema.maximum !== undefined && value > schema.maximum) return wrong(`at most ${schema.maximum}`);
  }
  if (typeof value === 'string') {
    if (!value.isWellFormed()) return wrong('text without lone surrogates');
    // Characters are counted where they are asked for: a long text would need its memory many times over.
    const bounded = schema.minLength !== undefined || schema.maxLength !== undefined;
    const length = bounded ? [...value].length : 0;
    if (schema.minLength !== undefined && length < schema.minLength) return wrong(`at least ${schema.minLength} characters`);
    if (schema.maxLength !== undefined && length > schema.maxLength) return wrong(`at most ${schema.maxLength} characters`);
    if (schema.pattern !== undefined && !new RegExp(schema.pattern, 'u').test(value)) return wrong(`text like ${schema.pattern}`);
  }
  if (Array.isArray(value)) {
    if (schema.minItems !== undefined && value.length < schema.minItems) return wrong(`at least ${schema.minItems} items`);
    if (schema.maxItems !== undefined && value.length > schema.maxItems) return wrong(`at most ${schema.maxItems} items`);
    return schema.items === undefined ? value : value.map((item, at) => visit(schema.items, item, `${path}[${at}]`, problems));
  }
  const isRecord = typeof schema.additionalProperties === 'object';
  if (isOf('object', value) && (schema.properties !== undefined || isRecord)) return visitObject(schema, value, path, problems);
  return value;
}

function visitObject(schema, value, path, problems) {
  const inside = (name) => (path === '' ? name : `${path}.${name}`);
  const found = { ...value };
  const properties = schema.properties ?? {};
  for (const [name, property] of Object.entries(properties)) {
    if (value[name] !== undefined) found[name] = visit(property, value[name], inside(name), problems);
    else if (Object.hasOwn(property, 'default')) found[name] = property.default;
    else if (schema.required?.includes(name)) problems.push(`\`${inside(name)}\` is missing`);
  }
  const others = Object.keys(value).filter((name) => !Object.hasOwn(properties, name));
  if (schema.additionalProperties === false && others.length > 0) {
    const known = Object.keys(properties).map((name) => `\`${name}\``).join(', ');
    problems.push(`\`${inside(others[0])}\` is unknown; there is: ${known || 'nothing'}`);
  }
  if (typeof schema.additionalProperties === 'object') {
    for (const name of others) found[name] = visit(schema.additionalProperties, value[name], inside(name), problems);
  }
  return found;
}

function isOf(type, value) {
  switch (type) {
    case 'null':
      return value === null;
    case 'array':
      return Array.isArray(value);
    case 'object':
      return value !== null && typeof value === 'object' && !Array.isArray(value);
    case 'integer':
      return Number.isSafeInteger(value);
    case 'number':
      return Number.isFinite(value);
    default:
      return typeof value === type;
  }
}

function same(a, b) {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}

/** Options of a call with defaults filled in, from `{ name: schema }`. Throws a `TypeError` that names the call. */
export function options(properties, given, where) {
  try {
    return checked({ type: 'object', properties, additionalProperties: false }, given ?? {}, where);
  } catch (error) {
    throw new TypeError(error.message);
  }
}

/** A value in an error: short, on one line. */
export function shown(value) {
  let text;
  try {
    if (typeof value === 'function') return 'a function';
    if (typeof value?.then === 'function') return 'a promise';
    if (typeof value === 'symbol' || value === undefined || typeof value === 'number') return String(value);
    text = typeof value === 'bigint' ? `${value}n` : JSON.stringify(value) ?? 'an object';
  } catch {
    // Its getters, or what it has for them, may throw anything.
    text = 'an object that cannot be JSON';
  }
  return text.length > 120 ? `${text.slice(0, 117)}...` : text;
}
