// How Node.js loads a plugin in tests: imports of the engine are functions of `globalThis.espalierHost`, types are stripped.

import { existsSync, readFileSync } from 'node:fs';
import { extname } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { SDK } from './place.mjs';
import { KINDS } from './kinds.mjs';

const NAMES = {
  'espalier:base/log': ['write'],
  'espalier:base/settings': ['get'],
  'espalier:base/clock': ['nowMs'],
  'espalier:base/random': ['below', 'bytes'],
  'espalier:base/blobs': ['put', 'read', 'readText', 'stat'],
  'espalier:model/conversations': ['open'],
  'espalier:environment/environments': ['open'],
  'espalier:sandbox/sandboxes': ['open', 'waitAny'],
  'espalier:sandbox/scoring': ['openFresh'],
  'espalier:sandbox/creation': ['create'],
  'espalier:browser/browsers': ['open'],
  'espalier:service/services': ['request'],
};

const JAVASCRIPT = /^espalier-sdk\/(.*)$/;
const TYPESCRIPT = ['.ts', '.mts', '.cts', '.tsx'];

/** Finds the engine, this SDK, and TypeScript that is imported as `.js`. */
export async function resolve(specifier, context, next) {
  if (specifier.startsWith('espalier:')) return { url: specifier, format: 'module', shortCircuit: true };
  const kind = JAVASCRIPT.exec(specifier)?.[1];
  if (Object.hasOwn(KINDS, kind ?? '')) return { url: pathToFileURL(`${SDK}/src/${kind}.js`).href, shortCircuit: true };
  if (/^\.{1,2}\//.test(specifier) && specifier.endsWith('.js') && context.parentURL !== undefined) {
    const source = new URL(specifier.replace(/\.js$/, '.ts'), context.parentURL);
    if (existsSync(source) && !existsSync(new URL(specifier, context.parentURL))) return { url: source.href, shortCircuit: true };
  }
  return next(specifier, context);
}

/** Loads what `resolve` found. */
export async function load(url, context, next) {
  if (url.startsWith('espalier:')) return { format: 'module', source: engine(url.split('@')[0]), shortCircuit: true };
  if (url.startsWith('file:') && TYPESCRIPT.includes(extname(url))) {
    const { transform } = await import('esbuild');
    const file = fileURLToPath(url);
    const { code } = await transform(readFileSync(file, 'utf8'), { loader: 'ts', format: 'esm', sourcefile: file, sourcemap: 'inline' });
    return { format: 'module', source: code, shortCircuit: true };
  }
  return next(url, context);
}

function engine(path) {
  const call = (name) => `export const ${name} = (...given) => {
  const call = globalThis.espalierHost?.['${path}']?.${name};
  if (call === undefined) throw new Error('${path}.${name} was called, and the engine is not there in tests');
  return call(...given);
};`;
  return (NAMES[path] ?? []).map(call).join('\n');
}
