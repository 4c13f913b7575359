// Source maps: which line of a source each piece of a bundle comes from.

const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';

/** For each line of the bundle its segments `{ column, source, line }`, in order, all from 0; `source` is -1 where there is none. */
export function decodeMappings(mappings) {
  let source = 0;
  let line = 0;
  return mappings.split(';').map((group) => {
    let column = 0;
    return group
      .split(',')
      .filter((text) => text !== '')
      .map((text) => {
        const [columns, sources, lines] = numbers(text);
        column += columns;
        if (sources === undefined) return { column, source: -1, line: 0 };
        source += sources;
        line += lines;
        return { column, source, line };
      });
  });
}

/** The numbers of one segment, in base 64 with continuation bits and the sign in the lowest. */
function numbers(text) {
  const found = [];
  let value = 0;
  let shift = 0;
  for (const letter of text) {
    const digit = DIGITS.indexOf(letter);
    value |= (digit & 31) << shift;
    if (digit & 32) {
      shift += 5;
    } else {
      found.push(value & 1 ? -(value >>> 1) : value >>> 1);
      value = 0;
      shift = 0;
    }
  }
  return found;
}

/** The segment that a place of the bundle lies in. */
export function segmentAt(segments, column) {
  let low = 0;
  let high = segments.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (segments[middle].column <= column) low = middle + 1;
    else high = middle;
  }
  return low === 0 ? undefined : segments[low - 1];
}
