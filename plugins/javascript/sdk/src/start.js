// Comes before the author's files in a component, whose code outside of functions runs at the build.

import { install } from './globals.js';

install();
