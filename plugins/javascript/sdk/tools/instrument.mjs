// Counters in the author's loops and functions, so that the engine can name the line where it stops a plugin; and the table that
// maps places of the bundle back to the author's files.

import { parse } from 'acorn';
import { decodeMappings, segmentAt } from './sourcemap.mjs';

/** One report to the engine for so many loops and calls, beside the first of each place since a host call: a power of two, less one. */
const SAMPLE = 1023;

/** The bundle with counters, and the table. `fileOf(source)` names a source of the map, null for one that is not the author's. */
export function instrument(code, map, fileOf, bundle) {
  const lines = decodeMappings(map.mappings);
  const names = map.sources.map((source) => fileOf(source));
  const files = [...new Set(names.filter((name) => name !== null))];
  const fileIndex = names.map((name) => (name === null ? -1 : files.indexOf(name)));
  const starts = lineStarts(code);

  const placeAt = (offset) => {
    const line = lineOf(starts, offset);
    const segment = segmentAt(lines[line] ?? [], offset - starts[line]);
    const file = segment === undefined || segment.source < 0 ? -1 : fileIndex[segment.source];
    return file < 0 ? null : { file, line: segment.line + 1 };
  };

  const sites = [];
  const insertions = [];
  const count = (body, at) => {
    const place = placeAt(at);
    if (place === null) return;
    const tick = `__seen[${sites.length}]===__round&&++__ticks&${SAMPLE}||__at(${sites.length});`;
    sites.push(place.file, place.line);
    if (body.type === 'BlockStatement') insertions.push([body.start + 1 + directives(body), tick]);
    else insertions.push([body.start, `{${tick}`], [body.end, '}']);
  };
  const wrap = (name) => (expression, at) => {
    const place = placeAt(at);
    if (place === null) return;
    insertions.push([expression.start, `${name}(${sites.length},`], [expression.end, ')']);
    sites.push(place.file, place.line);
  };
  walk(parse(code, { ecmaVersion: 'latest', sourceType: 'module' }), count, wrap('__thrown'), wrap('__match'));
  insertions.sort((a, b) => a[0] - b[0]);

  const head = prelude(files, sites, bundle);
  const positions = table(lines, fileIndex, starts, insertions, lineStarts(head).length - 1);
  // The table comes last: its length moves no place in it.
  const text = JSON.stringify(positions);
  const instrumented = `${head}${spliced(code, insertions)}\n__espalier.positions=${JSON.stringify(text)};\n`;
  return { code: instrumented, table: { bundle, files, positions: text } };
}

/**
 * What the counters and the SDK use. `__match` reports a regular expression's line before it is looked for: it may never be found. Of
 * a value without a stack `__thrown` keeps where it was thrown. After a host call the last place is reported again, since the engine
 * forgets it.
 */
function prelude(files, sites, bundle) {
  return `import{at as __report}from"espalier:plugin/diagnostics@0.1.2";
let __ticks=0,__round=1,__last=-1;
const __sites=${JSON.stringify(sites)},__seen=__sites.map(()=>0);
const __espalier=globalThis.__espalier={bundle:${JSON.stringify(bundle)},files:${JSON.stringify(files)},running:false};
const __place=site=>[__espalier.files[__sites[site]],__sites[site+1]];
const __tell=site=>{__last=site;if(__espalier.running)__report(...__place(site))};
__espalier.called=()=>{__round+=1;if(__last>=0)__tell(__last)};
function __thrown(site,value){__espalier.thrown={value,place:__place(site).join(':')};return value}
function __match(site,value){if(site!==__last)__tell(site);return value}
function __at(site){__seen[site]=__round;if(site!==__last)__tell(site)}
`;
}

function directives({ body, start }) {
  const last = body.findLast((statement) => statement.directive !== undefined);
  return last === undefined ? 0 : last.end - start - 1;
}

const LOOPS = new Set(['ForStatement', 'ForInStatement', 'ForOfStatement', 'WhileStatement', 'DoWhileStatement']);
const FUNCTIONS = new Set(['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression']);

/** Values that have no stack when they are thrown. */
const PLAIN = new Set(['Literal', 'TemplateLiteral', 'ObjectExpression', 'ArrayExpression', 'BinaryExpression']);

/** Methods that may look for a regular expression. */
const MATCHING = new Set(['test', 'exec', 'match', 'matchAll', 'replace', 'replaceAll', 'search', 'split']);

/** The last argument of such a call, without the dots of a spread; undefined for any other node. */
function matched({ type, callee, arguments: given }) {
  if (type !== 'CallExpression' || callee.type !== 'MemberExpression' || !MATCHING.has(callee.property.name)) return undefined;
  if (typeof given[0]?.value === 'string') return undefined;
  const last = given.at(-1);
  return last?.type === 'SpreadElement' ? last.argument : last;
}

/**
 * Calls `count(body, offset)` for each loop and each function with a block, with the offset of its first line, `thrown` for each
 * value without a stack in a `throw`, and `match` for the last argument of each call that may look for a regular expression, with the
 * offset of the method's name.
 */
function walk(node, count, thrown, match) {
  if (node.type === 'ThrowStatement' && PLAIN.has(node.argument.type)) thrown(node.argument, node.argument.start);
  const argument = matched(node);
  if (argument !== undefined) match(argument, node.callee.property.start);
  if (LOOPS.has(node.type)) count(node.body, node.start);
  else if (FUNCTIONS.has(node.type) && node.body.type === 'BlockStatement') count(node.body, node.start);
  for (const key in node) {
    const inner = node[key];
    if (inner === null || typeof inner !== 'object') continue;
    if (Array.isArray(inner)) {
      for (const one of inner) if (typeof one?.type === 'string') walk(one, count, thrown, match);
    } else if (typeof inner.type === 'string') {
      walk(inner, count, thrown, match);
    }
  }
}

function spliced(code, insertions) {
  let text = '';
  let from = 0;
  for (const [at, inserted] of insertions) {
    text += code.slice(from, at) + inserted;
    from = at;
  }
  return text + code.slice(from);
}

function lineStarts(code) {
  const starts = [0];
  for (let at = code.indexOf('\n'); at >= 0; at = code.indexOf('\n', at + 1)) starts.push(at + 1);
  return starts;
}

function lineOf(starts, offset) {
  let low = 0;
  let high = starts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= offset) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * By line of the bundle, from 1: column, file, line, column, file, line, ... where these change, all but the file from 1. Lines
 * without source of the author are left out.
 */
function table(lines, fileIndex, starts, insertions, above) {
  const found = {};
  let next = 0;
  lines.forEach((segments, line) => {
    let shift = 0;
    let before = -1;
    const entries = [];
    for (const { column, source, line: from } of segments) {
      while (next < insertions.length && insertions[next][0] <= starts[line] + column) {
        shift += insertions[next][1].length;
        next += 1;
      }
      const file = source < 0 ? -1 : fileIndex[source];
      const place = file < 0 ? -1 : file * 2 ** 24 + from;
      if (place !== before) entries.push(column + shift + 1, file, from + 1);
      before = place;
    }
    while (next < insertions.length && insertions[next][0] < (starts[line + 1] ?? Infinity)) next += 1;
    if (entries.some((file, at) => at % 3 === 1 && file >= 0)) found[line + 1 + above] = entries;
  });
  return found;
}
