// Places in the author's files: stacks of the bundle, mapped back by the table that the build puts into it.

/** As it was before an author's file may have replaced it. */
const { parse } = JSON;

/** The mapped frames of an error's stack, each on a line of its own behind a line break; those of the SDK are left out. */
export function stackOf(error) {
  const frames = framesIn(typeof error?.stack === 'string' ? error.stack : '');
  return frames.map((frame) => `\n    at ${frame}`).join('');
}

/** The frames of a stack that lie in the author's files, as `name (file:line)`. */
export function framesIn(stack, table = globalThis.__espalier) {
  if (table === undefined) return [];
  const frames = [];
  for (const line of stack.split('\n')) {
    const found = /^\s*at (?:(.*?) \()?([^()]*):(\d+):(\d+)\)?$/.exec(line);
    if (found === null || !found[2].endsWith(table.bundle)) continue;
    const place = placeAt(table, Number(found[3]), Number(found[4]));
    if (place !== null) frames.push(found[1] && found[1] !== '<anonymous>' ? `${found[1]} (${place})` : place);
  }
  return frames;
}

/** `file:line` in the author's source of a position in the bundle, both from 1; null for code that is not the author's. */
function placeAt(table, line, column) {
  // One entry for each line of the bundle that has source of the author: column, file, line, column, file, line, ...
  table.parsed ??= parse(table.positions);
  const entries = table.parsed[line];
  if (entries === undefined) return null;
  let at = 0;
  while (at + 3 < entries.length && entries[at + 3] < column) at += 3;
  return entries[at + 1] < 0 ? null : `${table.files[entries[at + 1]]}:${entries[at + 2]}`;
}
