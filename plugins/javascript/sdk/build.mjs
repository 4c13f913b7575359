#!/usr/bin/env node
// Builds a plugin: node sdk/build.mjs --kind KIND --entry FILE --out FILE [--folder FOLDER] [--wit FOLDER]

import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { BuildError, bundle } from './tools/bundle.mjs';
import { component } from './tools/component.mjs';
import { SDK } from './tools/place.mjs';
import { typeErrors } from './tools/types.mjs';

const { values } = parseArgs({
  options: {
    folder: { type: 'string', default: '.' },
    kind: { type: 'string' },
    entry: { type: 'string' },
    out: { type: 'string' },
    wit: { type: 'string' },
  },
});

async function main() {
  const { kind, entry } = values;
  const folder = resolve(values.folder);
  try {
    const checked = /\.[cm]?tsx?$/.test(entry) ? typeErrors(folder) : null;
    const bundled = await bundle({ folder, entry, kind });
    const made = await component({ ...bundled, kind, wit: resolve(values.wit ?? join(SDK, 'wit')) });
    const errors = await checked;
    if (errors !== null) throw new BuildError(errors);
    const out = resolve(folder, values.out);
    mkdirSync(dirname(out), { recursive: true });
    writeFileSync(out, made);
  } catch (error) {
    if (!(error instanceof BuildError)) throw error;
    console.error(error.message);
    process.exitCode = 1;
  }
}

await main();
