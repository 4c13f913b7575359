import assert from 'node:assert/strict';
import test from 'node:test';
import { checked, objectSchema, options, shown } from '../sdk/src/schema.js';

test('a schema of properties requires what has no default, and refuses the rest', () => {
  const schema = objectSchema({
    count: { type: 'integer', minimum: 1, default: 3 },
    name: { type: 'string' },
    inner: { type: 'object', properties: { x: { type: 'number' } } },
  });
  assert.deepEqual(schema.required, ['name', 'inner']);
  assert.equal(schema.additionalProperties, false);
  assert.deepEqual(schema.properties.inner.required, ['x']);
  assert.throws(() => objectSchema({ a: 5 }, 'settings'), /^TypeError: settings\.a: expected a schema/);
});

test('what is wrong is named by field, with what was expected', () => {
  const schema = objectSchema({
    count: { type: 'integer', minimum: 1, maximum: 9, default: 3 },
    words: { type: 'array', items: { type: 'string' }, default: [] },
    how: { enum: ['a', 'b'], default: 'a' },
    maybe: { type: ['string', 'null'], default: null },
    answer: { type: 'string' },
    sizes: { type: 'object', additionalProperties: { type: 'number' }, default: {} },
  });
  const cases = [
    [{}, 'task: `answer` is missing'],
    [{ answer: 4 }, 'task: `answer`: expected a string, got 4'],
    [{ answer: 'x', count: 0 }, 'task: `count`: expected at least 1, got 0'],
    [{ answer: 'x', count: 1.5 }, 'task: `count`: expected an integer, got 1.5'],
    [{ answer: 'x', words: ['a', 2] }, 'task: `words[1]`: expected a string, got 2'],
    [{ answer: 'x', how: 'c' }, 'task: `how`: expected one of "a", "b", got "c"'],
    [{ answer: 'x', maybe: 1 }, 'task: `maybe`: expected a string or null, got 1'],
    [{ answer: 'x', sizes: { a: 1, b: 'c' } }, 'task: `sizes.b`: expected a number, got "c"'],
    [{ answer: 'x', other: 1 }, 'task: `other` is unknown; there is: `count`, `words`, `how`, `maybe`, `answer`, `sizes`'],
    [null, 'task: expected an object, got null'],
  ];
  for (const [value, message] of cases) assert.throws(() => checked(schema, value, 'task'), { message });
  assert.deepEqual(checked(schema, { answer: 'x' }, 'task'), { answer: 'x', count: 3, words: [], how: 'a', maybe: null, sizes: {} });
});

test('options that are left out or undefined have their defaults', () => {
  const known = { a: { type: 'boolean', default: false } };
  assert.deepEqual(options(known, undefined, 'call'), { a: false });
  assert.deepEqual(options(known, { a: undefined }, 'call'), { a: false });
  assert.throws(() => options(known, { b: 1 }, 'call'), /^TypeError: call: `b` is unknown/);
});

test('values are shown on one line', () => {
  assert.equal(shown(undefined), 'undefined');
  assert.equal(shown(NaN), 'NaN');
  assert.equal(shown(() => 1), 'a function');
  assert.equal(shown(Promise.resolve()), 'a promise');
  assert.equal(shown('x'.repeat(500)).length, 120);
});
