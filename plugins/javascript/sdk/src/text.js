// UTF-8, which the engine of JavaScript has no functions for.

/** The bytes of a text. */
export function encode(text) {
  const escaped = unescape(encodeURIComponent(String(text).toWellFormed()));
  const bytes = new Uint8Array(escaped.length);
  for (let at = 0; at < escaped.length; at += 1) bytes[at] = escaped.charCodeAt(at);
  return bytes;
}

/** The text of bytes; what is no UTF-8 becomes replacement characters. */
export function decode(bytes) {
  let text = '';
  for (let at = 0; at < bytes.length; ) {
    const [point, length] = character(bytes, at);
    text += String.fromCodePoint(point);
    at += length;
  }
  return text;
}

const REPLACEMENT = 0xfffd;

/** The character at a place, and how many bytes it takes. */
function character(bytes, at) {
  const first = bytes[at];
  if (first < 0x80) return [first, 1];
  const needed = first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : 0;
  if (needed === 0) return [REPLACEMENT, 1];
  let point = first & (0x3f >> needed);
  for (let behind = 1; behind <= needed; behind += 1) {
    const next = bytes[at + behind];
    const low = behind > 1 ? 0x80 : first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
    const high = behind > 1 ? 0xbf : first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
    if (next === undefined || next < low || next > high) return [REPLACEMENT, behind];
    point = (point << 6) | (next & 0x3f);
  }
  return [point, needed + 1];
}
