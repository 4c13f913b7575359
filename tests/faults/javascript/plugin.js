// A harness that fails as its task says: one mode for each way in which plugins fail.

import { Conversation, Failure, blobs, harness, log, report, tool } from 'espalier-sdk/harness';

// Code outside of functions runs once, when the component is built.
let counted = 0;
while (counted < 100_000) counted += 1;

function endless() {
  for (let rounds = 0; ; rounds += 1);
}

function backtrack() {
  let found = 0;
  for (let size = 0; size < 100; size += 1) {
    found += size;
    found += /^(a+)+$/.test('a'.repeat(size) + 'b') ? 1 : 0;
    found += size;
  }
  return report.submitted({ data: found });
}

function hoard() {
  const pieces = [];
  for (;;) pieces.push(new Uint8Array(1 << 20).fill(1));
}

function descend(depth) {
  return descend(depth + 1) + depth;
}

function wrongJson() {
  return report.submitted({ data: { count: 10n } });
}

function useTools() {
  const add = tool({
    name: 'add',
    description: 'Adds two numbers.',
    parameters: { a: { type: 'number' }, b: { type: 'number' } },
    run: ({ a, b }) => a + b,
  });
  const chat = new Conversation('policy', { tools: [add] });
  chat.user('Use a tool.');
  chat.runTools(chat.complete());
  return report.submitted({ answer: chat.complete().text });
}

// There are no numbers of handles here: one that was given up is the nearest.
function invalidHandle() {
  const chat = new Conversation('policy').user('Go.');
  chat.complete();
  chat.discard();
  return report.submitted({ answer: chat.complete().text });
}

// Goes on after its budget of turns is used up.
function goOn() {
  const chat = new Conversation('policy').user('Go on.');
  for (;;) {
    try {
      chat.complete();
    } catch {
      continue;
    }
  }
}

function flood(lines) {
  for (let line = 0; line < lines; line += 1) log.info('x'.repeat(1024));
  return report.submitted();
}

function network() {
  return report.submitted({ answer: fetch('http://127.0.0.1/') });
}

export default harness({
  settings: {
    lines: { type: 'integer', minimum: 1, default: 10_000, description: 'Lines of a flood.' },
  },
  task: { data: { mode: { type: 'string' } } },

  run({ data: { mode } }, { lines }) {
    switch (mode) {
      case 'loop':
        return endless();
      case 'pattern':
        return backtrack();
      case 'memory':
        return hoard();
      case 'stack':
        return report.submitted({ data: descend(1) });
      case 'panic':
        throw new RangeError('an exception on purpose');
      case 'wrong-json':
        return wrongJson();
      case 'unknown-tool':
        return useTools();
      case 'invalid-handle':
        return invalidHandle();
      case 'foreign-blob':
        return report.submitted({ data: blobs.stat('of-another-rollout') });
      case 'call-after-end':
        return goOn();
      case 'random':
        return report.submitted({ data: { random: Math.random() } });
      case 'log-flood':
        return flood(lines);
      case 'error':
        throw Failure.other('no-plan', 'a failure on purpose');
      case 'oversized':
        return report.submitted({ answer: 'x'.repeat(20 << 20) });
      case 'network':
        return network();
      default:
        return report.submitted({ data: { mode, counted } });
    }
  },
});
