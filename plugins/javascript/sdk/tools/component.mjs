// From the bundle to the component, by componentize-qjs.

import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { componentize } from 'componentize-qjs';
import { framesIn } from '../src/positions.js';
import { BUNDLE, BuildError } from './bundle.mjs';
import { KINDS, worldOf } from './kinds.mjs';

/** The bytes of the component. `wit` is the folder of the engine's interfaces. Throws `BuildError`. */
export async function component({ code, table, imports, kind, wit }) {
  const world = mkdtempSync(join(tmpdir(), 'espalier-build-'));
  try {
    writeFileSync(join(world, 'built.wit'), worldOf(KINDS[kind], imports));
    writeFileSync(join(world, BUNDLE), code);
    mkdirSync(join(world, 'deps', 'plugin'), { recursive: true });
    copyFileSync(join(wit, 'plugin.wit'), join(world, 'deps', 'plugin', 'plugin.wit'));
    for (const name of readdirSync(join(wit, 'deps'))) {
      symlinkSync(join(wit, 'deps', name), join(world, 'deps', name));
    }
    const made = await componentize({
      witPath: world,
      world: 'built',
      jsSource: code,
      jsPath: join(world, BUNDLE),
      moduleRoot: world,
      sync: true,
      stubWasi: true,
    });
    return made.component;
  } catch (error) {
    throw new BuildError(toldAtBuild(error, table));
  } finally {
    rmSync(world, { recursive: true, force: true });
  }
}

/** An exception of code outside of functions, which runs at the build, with its places in the author's files. */
function toldAtBuild({ message }, table) {
  const told = message.split('Failed to finish JavaScript module evaluation: ').at(-1);
  const [first, ...stack] = told.split(/\n(?=\s+at )/);
  return [first, ...framesIn(stack.join('\n'), table).map((frame) => `    at ${frame}`)].join('\n');
}
