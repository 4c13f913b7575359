import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { framesIn } from '../sdk/src/positions.js';
import { BUNDLE, BuildError, bundle } from '../sdk/tools/bundle.mjs';
import { decodeMappings } from '../sdk/tools/sourcemap.mjs';

/** A bundle of these files, of which the first is the entry. */
async function bundled(kind, files) {
  const folder = mkdtempSync(join(tmpdir(), 'espalier-test-'));
  try {
    for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
    return await bundle({ folder, entry: Object.keys(files)[0], kind });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const HARNESS = `import { harness, report, type Task } from 'espalier-sdk/harness';
import { loop } from './loop.ts';

interface Unused {
  a: string;
}

export default harness({
  run(task: Task) {
    if (task.id === 'throw') throw 'text';
    loop(3);
    return report.submitted();
  },
});
`;

const LOOP = `type Count = number;

export function loop(times: Count): Count {
  let sum = 0;
  for (let i = 0; i < times; i += 1) sum += i;
  while (sum > 1000) {
    sum -= 1;
  }
  return sum;
}
`;

/** The places that the bundle may report. */
function placesIn(code) {
  const sites = JSON.parse(/const __sites=(\[.*?\]),/.exec(code)[1]);
  const files = JSON.parse(/files:(\[.*?\])/.exec(code)[1]);
  const places = [];
  for (let at = 0; at < sites.length; at += 2) places.push(`${files[sites[at]]}:${sites[at + 1]}`);
  return places.sort();
}

test('loops and functions of the author are counted, with their lines', async () => {
  const { code } = await bundled('harness', { 'plugin.ts': HARNESS, 'loop.ts': LOOP });
  assert.deepEqual(placesIn(code), ['loop.ts:3', 'loop.ts:5', 'loop.ts:6', 'plugin.ts:10', 'plugin.ts:9']);
});

const MATCHES = `import { reward } from 'espalier-sdk/reward';

const pairs = [['a', 'b']];

export default reward({
  score: ({ answer }) =>
    /(a+)+$/.test(answer) +
    answer?.replace(
      /(a+)+$/g,
      (found) => found.match(/a/)[0],
    ).split(',').length +
    'ab'.replace(...pairs[0]).search(/b/),
});
`;

test('calls that may look for a regular expression are reported, with their lines', async () => {
  const { code } = await bundled('reward', { 'plugin.js': MATCHES });
  assert.deepEqual(placesIn(code), ['plugin.js:10', 'plugin.js:12', 'plugin.js:12', 'plugin.js:7', 'plugin.js:8']);
  assert.match(code, /\.test\(__match\(\d+,answer\w*\)\)/);
  assert.match(code, /\.replace\(\.\.\.__match\(\d+,pairs\[0\]\)\)/);
});

test('places of the bundle are those of the source, behind inserted text too', async () => {
  const { code, table } = await bundled('harness', { 'plugin.ts': HARNESS, 'loop.ts': LOOP });
  const at = (text) => {
    const line = code.split('\n').findIndex((line) => line.includes(text));
    return `    at f (/tmp/${BUNDLE}:${line + 1}:${code.split('\n')[line].indexOf(text) + 1})`;
  };
  assert.deepEqual(framesIn([at('sum += i'), at('sum -= 1'), at('"text"'), at('loop(3)')].join('\n'), table), [
    'f (loop.ts:5)',
    'f (loop.ts:7)',
    'f (plugin.ts:10)',
    'f (plugin.ts:11)',
  ]);
  assert.deepEqual(framesIn(`${at('function harness(')}\n    at parse (native)\n    at <input>:1:2\n    at g (other.js:1:1)`, table), []);
});

test('a plugin imports what it uses, and what its world has', async () => {
  const plain = "import { reward } from 'espalier-sdk/reward';\nexport default reward({ score: () => 1 });\n";
  const { imports } = await bundled('reward', { 'plugin.js': plain });
  assert.ok(!imports.some((path) => path.includes('sandbox')), imports.join(' '));
  const compares = "import { Conversation, groupReward } from 'espalier-sdk/group-reward';\nexport default groupReward({ score: () => new Conversation('x') });\n";
  assert.ok((await bundled('group-reward', { 'plugin.js': compares })).imports.includes('espalier:model/conversations@0.1.0'));
  const foreign = `import { Conversation } from 'espalier-sdk/judge';\n${plain.replace('() => 1', "() => new Conversation('x')")}`;
  await assert.rejects(bundled('reward', { 'plugin.js': foreign }), (error) => {
    assert.ok(error instanceof BuildError);
    assert.match(error.message, /^a plugin of kind reward cannot import espalier:model\/conversations@0\.1\.0; it can import:/);
    return true;
  });
});

test('what is wrong with the source has its place', async () => {
  await assert.rejects(bundled('reward', { 'plugin.js': 'export default {' }), /plugin\.js:1:17: Expected identifier but found end of file/);
  await assert.rejects(bundled('reward', { 'plugin.js': "import fs from 'node:fs';\nfs();" }), /plugin\.js:1:16: Could not resolve "node:fs"/);
  await assert.rejects(bundled('reward', { 'plugin.js': "import 'espalier-sdk/rewards';" }), /there is no espalier-sdk\/rewards; there is: /);
});

test('mappings are read as source maps have them', () => {
  assert.deepEqual(decodeMappings('AAAA,IAAM;;ACDN,QAAQ'), [
    [
      { column: 0, source: 0, line: 0 },
      { column: 4, source: 0, line: 0 },
    ],
    [],
    [
      { column: 0, source: 1, line: -1 },
      { column: 8, source: 1, line: -1 },
    ],
  ]);
});
