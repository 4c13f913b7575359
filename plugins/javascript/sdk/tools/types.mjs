// The check of types, by the project's own TypeScript.

import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';

/** What the compiler has against the project; null where there is nothing, or no compiler. */
export async function typeErrors(folder) {
  const tsc = join(folder, 'node_modules', 'typescript', 'bin', 'tsc');
  if (!existsSync(tsc)) return null;
  const child = spawn(process.execPath, [tsc, '--noEmit', '--pretty', 'false', '--project', folder], { cwd: folder });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (piece) => (output += piece));
  const code = await new Promise((done) => child.on('close', done));
  return code === 0 ? null : output.trim();
}
