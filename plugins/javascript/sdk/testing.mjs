// For tests of a plugin's own functions on this machine: node --import ./sdk/testing.mjs --test
// The engine is not there: what calls it throws, unless `globalThis.espalierHost` has a function for it. TypeScript is taken as it is.

import { register } from 'node:module';

register('./tools/hooks.mjs', import.meta.url);
