// Where this SDK lies.

import { realpathSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Its folder. */
export const SDK = realpathSync(dirname(dirname(fileURLToPath(import.meta.url))));
