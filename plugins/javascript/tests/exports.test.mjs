import assert from 'node:assert/strict';
import test from 'node:test';
import { Conversation, Failure, ToolError, harness, report, tool } from '../sdk/src/harness.js';
import { groupReward } from '../sdk/src/group-reward.js';
import { jsonOf } from '../sdk/src/json.js';
import { reward } from '../sdk/src/reward.js';
import { taskGenerator } from '../sdk/src/task-generator.js';
import { model, open, rollout, task } from './engine.mjs';

const JSON_EXPECTED = 'expected null, a boolean, a finite number, a string, a list or a plain object';

const running = async (run, settings) => {
  const { harness: made, lines } = await open('harness', harness({ run }), { settings });
  return { run: () => made.run(task({ data: { low: 1 } })), lines };
};

test('reports are in the form of the engine', async () => {
  const reports = [
    [report.submitted({ answer: '4', data: { n: 1 } }), { outcome: { tag: 'submitted' }, answer: '4', data: '{"n":1}', extra: null }],
    [report.gaveUp(), { outcome: { tag: 'gave-up' }, answer: null, data: 'null', extra: null }],
    [report.limit('turns'), { outcome: { tag: 'limit', val: { tag: 'turns' } }, answer: null, data: 'null', extra: null }],
    [report.limit('gold'), { outcome: { tag: 'limit', val: { tag: 'other', val: 'gold' } }, answer: null, data: 'null', extra: null }],
    [{ outcome: 'mine' }, { outcome: { tag: 'other', val: 'mine' }, answer: null, data: 'null', extra: null }],
  ];
  for (const [given, expected] of reports) {
    const { run } = await running(() => given);
    assert.deepEqual(run(), expected);
  }
});

test('a wrong return value is named by field', async () => {
  const wrong = [
    [undefined, 'run returned a wrong value: expected an object, got undefined'],
    [{ outcome: 'submitted', answer: 4 }, 'run returned a wrong value: `answer`: expected a string or null, got 4'],
    [{ outcome: 'submitted', answer: '\ud800' }, 'run returned a wrong value: `answer`: expected text without lone surrogates, got "\\ud800"'],
    [{ outcome: 'submitted', awnser: '4' }, 'run returned a wrong value: `awnser` is unknown'],
    [Promise.resolve(), 'run returned a promise: plugins are synchronous; remove `async`'],
    [report.submitted({ data: 1n }), `run returned a wrong value: \`data\`: ${JSON_EXPECTED}, got 1n`],
    [
      Object.defineProperty({ outcome: 'submitted' }, 'answer', {
        enumerable: true,
        get() {
          throw null;
        },
      }),
      'uncaught null, which is not an Error',
    ],
  ];
  for (const [given, message] of wrong) {
    const { run, lines } = await running(() => given);
    assert.throws(run, TypeError);
    assert.ok(lines[0].startsWith(`error: TypeError: ${message}`), lines[0]);
  }
});

test('what JSON would lose or change is named by field', async () => {
  const cycle = { list: [] };
  cycle.list.push(cycle);
  class Point {
    #x = 1;
  }
  const wrong = [
    [{ a: { b: NaN } }, 'a.b', 'NaN'],
    [[1, undefined], '[1]', 'undefined'],
    [{ a: [() => 1] }, 'a[0]', 'a function'],
    [{ a: Symbol('s') }, 'a', 'Symbol(s)'],
    [{ a: Infinity }, 'a', 'Infinity'],
    [cycle, 'list[0]', 'an object that contains itself'],
    [{ seen: new Map([[1, 2]]) }, 'seen', 'an object of the class Map'],
    [{ seen: new Uint8Array(2) }, 'seen', 'an object of the class Uint8Array'],
    [{ seen: [new Point()] }, 'seen[0]', 'an object of the class Point'],
    [{ seen: Object.assign(new Error('e'), { code: 1 }) }, 'seen', 'an object of the class Error'],
    [{ at: new Date(NaN) }, 'at', 'an invalid date'],
    [{ a: ['\ud800'] }, 'a[0]', '"\\ud800", which has lone surrogates'],
    [{ a: { '\ud800': 1 } }, 'a', 'the key "\\ud800", which has lone surrogates'],
    [{ seen: Promise.resolve(1) }, 'seen', 'an object of the class Promise'],
  ];
  for (const [data, path, got] of wrong) assert.throws(() => jsonOf(data, 'w'), { name: 'TypeError', message: `w: \`${path}\`: ${JSON_EXPECTED}, got ${got}` });
  class Named {
    name = 'n';
  }
  const twice = { x: 1 };
  assert.equal(jsonOf({ a: undefined, b: new Date(0), c: new Named(), d: [twice, twice], e: Object.create(null) }, 'w'), JSON.stringify({ b: new Date(0), c: { name: 'n' }, d: [twice, twice], e: {} }));
});

test('a failure is returned, an exception is logged and goes on', async () => {
  const failing = await running(() => {
    throw Failure.other('mine', 'no');
  });
  assert.throws(failing.run, (thrown) => {
    assert.deepEqual(thrown, { tag: 'other', val: { code: 'mine', text: 'no' } });
    return true;
  });
  assert.deepEqual(failing.lines, []);
  const throwing = await running(() => null.x);
  assert.throws(throwing.run, TypeError);
  assert.match(throwing.lines[0], /^error: TypeError: /);
  const text = await running(() => {
    throw 'words';
  });
  assert.throws(text.run);
  assert.equal(text.lines[0], 'error: uncaught "words", which is not an Error');
});

test('a plugin that is declared wrongly says so at once', async () => {
  assert.throws(() => harness({}), /harness: `run`: expected a function, got undefined/);
  assert.throws(() => harness({ run() {}, seting: {} }), /harness: `seting` is unknown; there is: settings, task, run/);
  assert.throws(() => harness(() => 1), /harness: expected an object with run, got a function/);
  await assert.rejects(open('harness', undefined), /got no default export/);
  await assert.rejects(open('harness', reward({ score: () => 1 })), /got a plugin of kind reward/);
});

test('settings have a schema', async () => {
  const declared = reward({ settings: { strict: { type: 'boolean', default: false, description: 'Whether.' } }, score: () => 1 });
  const { configurable } = await open('reward', declared);
  assert.deepEqual(JSON.parse(configurable.settingsSchema()), {
    type: 'object',
    properties: { strict: { type: 'boolean', default: false, description: 'Whether.' } },
    additionalProperties: false,
  });
});

test('scores are numbers, scores or lists of them', async () => {
  const whole = (more) => ({ name: 'reward', turn: null, reason: '', extra: null, ...more });
  const given = [
    [0.5, [whole({ value: 0.5 })]],
    [{ value: 1, reason: 'yes' }, [whole({ value: 1, reason: 'yes' })]],
    [[{ name: 'a', value: 1, turn: 2, extra: { k: 1 } }, 0], [whole({ name: 'a', value: 1, turn: 2, extra: '{"k":1}' }), whole({ value: 0 })]],
  ];
  for (const [score, expected] of given) {
    const { reward: made } = await open('reward', reward({ score: () => score }));
    assert.deepEqual(made.scoreRollout(rollout({ answer: 'x' })), expected);
  }
  for (const [score, message] of [
    [NaN, '`[0].value`: expected a number, got NaN'],
    ['1', 'expected a list, got "1"'],
    [{ value: '1' }, '`[0].value`: expected a number, got "1"'],
  ]) {
    const { reward: made, lines } = await open('reward', reward({ score: () => score }));
    assert.throws(() => made.scoreRollout(rollout()), TypeError);
    assert.ok(lines[0].includes(message), lines[0]);
  }
});

test('a group has a list of scores for each rollout', async () => {
  const { groupReward: made, lines } = await open('group-reward', groupReward({ score: () => [1] }));
  assert.throws(() => made.scoreGroup([rollout(), rollout()]), TypeError);
  assert.ok(lines[0].includes('expected at least 2 items, got'), lines[0]);
});

test('tasks are objects', async () => {
  const declared = taskGenerator({ generate: ({ count, seed, batch }) => [{ id: 'a', n: count + seed + batch }] });
  const { taskGenerator: made } = await open('task-generator', declared);
  assert.deepEqual(made.generate({ count: 1, seed: 2, extra: '{"batch":3,"accepted":0}' }), ['{"id":"a","n":6}']);
  assert.deepEqual(made.adapt('{}', { attempts: 1, accuracy: 1, turns: 1, endings: [], failures: [], extra: null }), []);
});

test('tools are run with checked arguments, and the model is told what is wrong', async () => {
  const add = tool({
    name: 'add',
    parameters: { a: { type: 'number' }, b: { type: 'number', default: 1 } },
    run({ a, b }) {
      if (a < 0) throw new ToolError('too small');
      return a + b;
    },
  });
  const call = (id, name, given) => ({ id, name, arguments: JSON.stringify(given) });
  const answers = model({
    text: '',
    toolCalls: [call('1', 'add', { a: 2 }), call('2', 'add', {}), call('3', 'sub', {}), call('4', 'add', { a: -1 })],
  }, 'done');
  const { harness: made } = await open('harness', harness({
    run() {
      const conversation = new Conversation('policy', { tools: [add], temperature: 0 });
      assert.equal(conversation.user('go').runTools(conversation.complete()), 4);
      return report.submitted({ answer: conversation.complete({ maxTokens: 5 }).text });
    },
  }), answers.imports);
  assert.equal(made.run(task()).answer, 'done');
  assert.equal(answers.said[0].tools[0].name, 'add');
  const results = answers.said.filter(({ role }) => role === 'tool').map(({ parts }) => [parts[0].val.text, parts[0].val.isError]);
  assert.deepEqual(results, [
    ['3', false],
    ['invalid arguments: `a` is missing', true],
    ['unknown tool `sub`; there is: add', true],
    ['too small', true],
  ]);
  assert.deepEqual(answers.said.at(-1), { maxTokens: 5, stop: [], temperature: 0, toolChoice: null, extra: null });
});

test('wrong arguments of a conversation are named before the engine is called', () => {
  assert.throws(() => new Conversation('policy', { maxToken: 1 }), /options of a conversation: `maxToken` is unknown/);
  assert.throws(() => new Conversation('policy').user(4), /text of a message of role user: expected a string, got 4/);
  assert.throws(() => new Conversation('policy').completeMany(0), /expected 1 to 256 answers, got 0/);
});
