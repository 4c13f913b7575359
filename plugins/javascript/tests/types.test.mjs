import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

const path = (name) => fileURLToPath(new URL(name, import.meta.url));

test('types follow from schemas, and the templates have no errors', () => {
  const tsc = path('../node_modules/typescript/bin/tsc');
  const { stdout, status } = spawnSync(process.execPath, [tsc, '--pretty', 'false', '--project', path('types')], { encoding: 'utf8' });
  assert.equal(stdout, '');
  assert.equal(status, 0);
});
