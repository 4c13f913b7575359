import assert from 'node:assert/strict';
import test from 'node:test';
import { decode, encode } from '../sdk/src/text.js';

test('UTF-8 is as that of Node.js, also where it is broken', () => {
  const texts = ['', 'a', 'é€𝄞z', '\ud800x', 'x\udc00', '\u0000\u007f\u0080\u07ff\u0800\uffff\u{10ffff}'];
  for (const text of texts) {
    assert.deepEqual(encode(text), new Uint8Array(new TextEncoder().encode(text)));
    assert.equal(decode(encode(text)), text.toWellFormed());
  }
  const broken = [[0xff], [0xc3], [0xe2, 0x82], [0xe2, 0x82, 0x41], [0xc0, 0x80], [0xed, 0xa0, 0x80], [0xf4, 0x90, 0x80, 0x80], [0xf0, 0x9d, 0x84]];
  for (const bytes of broken) {
    const given = Uint8Array.from([0x61, ...bytes, 0x62]);
    assert.equal(decode(given), new TextDecoder().decode(given), bytes.toString());
  }
});
