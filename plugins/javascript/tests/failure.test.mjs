import assert from 'node:assert/strict';
import test from 'node:test';
import { Failure, callHost } from '../sdk/src/failure.js';

test('a failure of an import comes back as it came', () => {
  const failures = [
    [{ tag: 'budget', val: { tag: 'turns' } }, { kind: 'budget', budget: 'turns', message: 'the budget of turns is used up' }],
    [{ tag: 'budget', val: { tag: 'other', val: 'gold' } }, { kind: 'budget', budget: 'other', message: 'gold' }],
    [{ tag: 'cancelled' }, { kind: 'cancelled' }],
    [{ tag: 'invalid', val: 'no such blob' }, { kind: 'invalid', message: 'no such blob' }],
    [{ tag: 'other', val: { code: 'bound', text: 'too many' } }, { kind: 'other', code: 'bound', message: 'too many' }],
  ];
  for (const [wit, expected] of failures) {
    const call = () => {
      throw Object.assign(new Error(), { payload: wit });
    };
    assert.throws(() => callHost(call), (error) => {
      assert.ok(error instanceof Failure);
      for (const [name, value] of Object.entries(expected)) assert.equal(error[name], value);
      assert.deepEqual(error.toWit(), wit);
      return true;
    });
  }
});

test('failures of the plugin itself have the form of the engine', () => {
  assert.deepEqual(Failure.invalid('x').toWit(), { tag: 'invalid', val: 'x' });
  assert.deepEqual(Failure.other('code', 'x').toWit(), { tag: 'other', val: { code: 'code', text: 'x' } });
  assert.deepEqual(new Failure('budget', 'x', { budget: 'wall' }).toWit(), { tag: 'budget', val: { tag: 'wall' } });
  assert.throws(() => new Failure('no-such', 'x'), /unknown kind of failure/);
});

test('what is no failure of an import is left alone', () => {
  const thrown = new TypeError('x');
  assert.throws(() => callHost(() => { throw thrown; }), (error) => error === thrown);
});
