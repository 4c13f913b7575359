// From the author's files to one module that componentize-qjs takes.

import { build } from 'esbuild';
import { existsSync } from 'node:fs';
import { join, relative, resolve, sep } from 'node:path';
import { instrument } from './instrument.mjs';
import { KINDS } from './kinds.mjs';
import { SDK } from './place.mjs';

/** The name of the module in stacks. */
export const BUNDLE = 'plugin.bundle.js';

/** What is wrong with the author's source, in words for him. */
export class BuildError extends Error {}

/** Bundles a plugin. Gives the code, the table of its places, and the interfaces of the engine that it imports. Throws `BuildError`. */
export async function bundle({ folder, entry, kind }) {
  if (!Object.hasOwn(KINDS, kind)) throw new BuildError(`unknown kind ${kind}; there is: ${Object.keys(KINDS).join(', ')}`);
  const file = resolve(folder, entry);
  if (!existsSync(file)) throw new BuildError(`no file ${entry}: it is the entry of the plugin, where plugin.toml names no other`);
  const result = await build({
    stdin: { contents: entryOf(file, kind), resolveDir: folder, sourcefile: 'espalier:entry' },
    absWorkingDir: folder,
    bundle: true,
    format: 'esm',
    platform: 'neutral',
    mainFields: ['module', 'main'],
    conditions: ['import', 'module'],
    target: 'es2023',
    charset: 'ascii',
    write: false,
    metafile: true,
    sourcemap: 'external',
    sourcesContent: false,
    outfile: join(folder, BUNDLE),
    logLevel: 'silent',
    legalComments: 'none',
    plugins: [engine(), sdk()],
  }).catch((error) => {
    throw new BuildError(messagesOf(error));
  });
  const imports = importsOf(result.metafile, kind);
  const [map, code] = ['.map', '.js'].map((end) => result.outputFiles.find((output) => output.path.endsWith(end)).text);
  const instrumented = instrument(code, JSON.parse(map), (source) => fileOf(folder, source), BUNDLE);
  return { ...instrumented, imports: [...new Set([...imports, 'espalier:plugin/diagnostics@0.1.2'])] };
}

/** What the component exports, made of the author's default export. */
function entryOf(file, kind) {
  const { name } = KINDS[kind];
  return [
    `import ${JSON.stringify(join(SDK, 'src', 'start.js'))};`,
    `import * as plugin from ${JSON.stringify(file)};`,
    `import { componentOf } from ${JSON.stringify(join(SDK, 'src', `${kind}.js`))};`,
    'const made = componentOf(plugin.default);',
    `export const ${name} = made.${name};`,
    'export const configurable = made.configurable;',
  ].join('\n');
}

/** Imports of the engine stay imports, and go where nothing uses them. */
function engine() {
  return {
    name: 'engine',
    setup: ({ onResolve }) => onResolve({ filter: /^espalier:/ }, ({ path }) => ({ path, external: true, sideEffects: false })),
  };
}

/** `espalier-sdk/...` is this folder, also before `npm install`. */
function sdk() {
  const known = Object.keys(KINDS);
  const found = (path) => {
    const kind = path.slice('espalier-sdk/'.length);
    if (known.includes(kind)) return { path: join(SDK, 'src', `${kind}.js`), sideEffects: false };
    return { errors: [{ text: `there is no ${path}; there is: ${known.map((name) => `espalier-sdk/${name}`).join(', ')}` }] };
  };
  return { name: 'sdk', setup: ({ onResolve }) => onResolve({ filter: /^espalier-sdk(\/|$)/ }, ({ path }) => found(path)) };
}

/** The interfaces that are left, checked against the world of the kind. */
function importsOf({ outputs }, kind) {
  const allowed = KINDS[kind].imports;
  const output = Object.values(outputs).find(({ imports }) => imports !== undefined && imports.length > 0);
  const imports = [...new Set((output?.imports ?? []).map(({ path }) => path))];
  const foreign = imports.find((path) => !allowed.includes(path));
  if (foreign === undefined) return imports;
  throw new BuildError(
    `a plugin of kind ${kind} cannot import ${foreign}; it can import:\n${allowed.map((path) => `  ${path}`).join('\n')}\n` +
      `hint: import from 'espalier-sdk/${kind}', which has what this kind can use`,
  );
}

function messagesOf(error) {
  if (error.errors === undefined) return error.stack;
  const told = ({ text, location }) =>
    location === null ? text : `${location.file}:${location.line}:${location.column + 1}: ${text}\n    ${location.lineText.trim()}`;
  return error.errors.map(told).join('\n');
}

/** The name of a source for its author: below his folder, or a package; null for the SDK and what the build adds. */
function fileOf(folder, source) {
  const path = resolve(folder, source);
  if (source.startsWith('espalier:') || path.startsWith(SDK + sep) || path === join(folder, 'espalier:entry')) return null;
  return relative(folder, path).split(sep).join('/');
}
