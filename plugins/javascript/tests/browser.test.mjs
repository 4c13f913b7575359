import assert from 'node:assert/strict';
import test from 'node:test';
import { Conversation, Failure, harness, openBrowser, report } from '../sdk/src/harness.js';
import { Service, reward } from '../sdk/src/reward.js';
import { model, open, rollout, task } from './engine.mjs';

/** A step as the engine gives it. */
function step(name, outcome, more = {}) {
  const plain = { element: null, position: null, meanwhile: [], effects: [], settled: null, durationMs: 5, text: `${name}.`, extra: null };
  return { name, outcome, ...plain, ...more };
}

/** A browser that answers `act` with these steps, one each, and keeps what it was asked. */
function browser(steps, answers = {}) {
  const asked = [];
  const opened = {
    tools: () => [{ name: 'click', description: 'Clicks.', parameters: '{"type":"object"}' }],
    act: (actions) => {
      asked.push(...actions);
      return steps.splice(0, actions.length);
    },
    ...answers,
  };
  const imports = { 'espalier:browser/browsers': { open: (name) => (asked.push(name), opened) } };
  return { imports, asked };
}

/** What `run` returns as the data of a report. */
async function ran(run, imports) {
  const { harness: made } = await open('harness', harness({ run: () => report.submitted({ data: run() }) }), imports);
  return JSON.parse(made.run(task()).data);
}

test('steps of a browser are plain objects', async () => {
  const tab = { index: 1, url: 'http://a/', title: 'A', isActive: true, extra: null };
  const effects = [
    { tag: 'navigated', val: { url: 'http://a/', title: 'A', status: 200, withinDocument: false } },
    { tag: 'blocked', val: 'file:///' },
    { tag: 'tab-opened', val: tab },
    { tag: 'tab-closed', val: 2 },
    { tag: 'dialog', val: { kind: 'alert', message: 'Hm.', answer: 'dismissed' } },
    { tag: 'console-errors', val: [3, 'TypeError'] },
    { tag: 'changed', val: '2 new' },
    { tag: 'nothing-changed' },
    { tag: 'other', val: '{"a":1}' },
  ];
  const element = { text: 'button "Go"', role: 'button', name: 'Go', tag: 'button', area: null, extra: null };
  const steps = [
    step('click', { tag: 'done' }, { effects, element, meanwhile: [{ tag: 'nothing-changed' }] }),
    step('click', { tag: 'failed', val: { code: 'stale-reference', text: 'e1 is gone' } }),
    step('write', { tag: 'skipped', val: 'an action before it failed' }),
    step('done', { tag: 'ended', val: { response: 'ok', status: null } }),
    step('call_user', { tag: 'asked', val: 'Which?' }),
    step('new', { tag: 'other', val: '[1]' }),
  ];
  const { imports, asked } = browser(steps);
  const told = await ran(() => {
    const one = openBrowser();
    return [one.tool('click', { ref: 'e1' }), ...one.act(['click', 'write', 'done', 'call_user', 'new'].map((name) => ({ name })))];
  }, imports);
  assert.deepEqual(asked[1], { name: 'click', arguments: '{"ref":"e1"}' });
  assert.equal(asked[0], 'main');
  assert.deepEqual(told[0].effects, [
    { kind: 'navigated', url: 'http://a/', title: 'A', status: 200, withinDocument: false },
    { kind: 'blocked', url: 'file:///' },
    { kind: 'tab-opened', ...tab },
    { kind: 'tab-closed', index: 2 },
    { kind: 'dialog', dialog: 'alert', message: 'Hm.', answer: 'dismissed' },
    { kind: 'console-errors', count: 3, first: 'TypeError' },
    { kind: 'changed', summary: '2 new' },
    { kind: 'nothing-changed' },
    { kind: 'other', value: { a: 1 } },
  ]);
  assert.deepEqual([told[0].done, told[0].element, told[0].meanwhile], [true, element, [{ kind: 'nothing-changed' }]]);
  const outcome = ({ done, outcome, problem, skipped, ended, asked, other }) => [done, outcome, problem ?? skipped ?? ended ?? asked ?? other];
  assert.deepEqual(told.slice(1).map(outcome), [
    [false, 'failed', { code: 'stale-reference', text: 'e1 is gone' }],
    [false, 'skipped', 'an action before it failed'],
    [false, 'ended', { response: 'ok', status: null }],
    [false, 'asked', 'Which?'],
    [false, 'other', [1]],
  ]);
});

test('what a browser shows is asked for with options by name', async () => {
  const asked = [];
  const keep = (answer) => (...given) => (asked.push(given), answer);
  const { imports } = browser([], {
    snapshot: keep({ text: 'button', tokens: 2, leftOut: 0, extra: null }),
    screenshot: keep({ blob: 'b1', width: 2, height: 1, extra: null }),
    evaluate: keep('{"a":1}'),
    storageState: keep('{"cookies":[],"origins":[]}'),
    tabs: keep([{ index: 0, url: 'about:blank', title: '', isActive: true, extra: '{"b":1}' }]),
  });
  const told = await ran(() => {
    const one = openBrowser('other');
    assert.throws(() => one.snapshot({ tokens: 5 }), /^TypeError: snapshot: `tokens` is unknown; there is: `tokensMax`/);
    assert.throws(() => one.screenshot({ format: 'gif' }), /screenshot: `format`: expected one of "png", "jpeg", "webp"/);
    const shown = [one.snapshot({ changes: true }).text, one.screenshot({ format: 'jpeg', quality: 50 }).blob];
    return [...shown, one.evaluate('a'), one.evaluateIsolated('b'), one.storageState(), one.tabs()[0].extra];
  }, imports);
  assert.deepEqual(told, ['button', 'b1', { a: 1 }, { a: 1 }, { cookies: [], origins: [] }, { b: 1 }]);
  assert.deepEqual(asked.slice(0, 4), [
    [{ tokensMax: null, changes: true, wholePage: false, extra: null }],
    [{ format: 'jpeg', quality: 50, scale: null, fullPage: false, extra: null }],
    ['a', 'page'],
    ['b', 'isolated'],
  ]);
});

test('a model is offered the tools of the browser', async () => {
  const { imports, asked } = browser([step('click', { tag: 'done' })]);
  const { said, imports: models } = model({ text: '', toolCalls: [{ id: 'c1', name: 'click', arguments: '{"ref":"e1"}' }] });
  await ran(
    () => {
      const one = openBrowser();
      const conversation = new Conversation('policy', { tools: one.tools() }).user('Go.');
      return conversation.runTools(conversation.complete());
    },
    { ...imports, ...models },
  );
  assert.deepEqual(said[0].tools, [{ name: 'click', description: 'Clicks.', parameters: '{"type":"object"}' }]);
  assert.deepEqual(asked.slice(1), [{ name: 'click', arguments: '{"ref":"e1"}' }]);
});

test('a service answers JSON, and what it refuses is a failure', async () => {
  const asked = [];
  const answers = {
    '/go': [200, '{"cart":["lamp"]}'],
    '/post': [200, '{"ok":true}'],
    '/no': [404, '{"error":{}}'],
    '/html': [200, '<p>'],
  };
  const request = (name, method, path, body) => {
    asked.push([name, method, path, new TextDecoder().decode(body)]);
    const [status, text] = answers[path];
    return { status, contentType: 'application/json', body: new TextEncoder().encode(text), extra: null };
  };
  const score = () => {
    const shop = new Service('shop');
    assert.deepEqual(shop.post('/post', { a: 1 }), { ok: true });
    assert.throws(() => shop.get('/no'), (error) => error instanceof Failure && error.message === 'shop/no: status 404: {"error":{}}');
    assert.throws(() => shop.get('/html'), (error) => error.kind === 'invalid' && error.message.startsWith('shop/html: ') && error.message.endsWith(': <p>'));
    assert.equal(shop.request('GET', '/no').status, 404);
    return shop.get('/go').cart.length;
  };
  const { reward: made } = await open('reward', reward({ score }), { 'espalier:service/services': { request } });
  assert.equal(made.scoreRollout(rollout())[0].value, 1);
  assert.deepEqual(asked[0], ['shop', 'POST', '/post', '{"a":1}']);
});
