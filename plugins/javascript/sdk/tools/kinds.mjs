// What each kind of plugin exports and may import: the worlds of `wit/plugin.wit`.

const BASE = ['base/log@0.1.0', 'base/settings@0.1.0', 'base/clock@0.1.0', 'base/random@0.1.0', 'plugin/diagnostics@0.1.2'];
const BLOBS = 'base/blobs@0.1.0';
const MODEL = 'model/conversations@0.1.0';
const SANDBOX = 'sandbox/sandboxes@0.1.1';
const BROWSER = 'browser/browsers@0.1.0';
const SERVICE = 'service/services@0.1.0';
const SCORING = [BLOBS, SANDBOX, 'sandbox/scoring@0.1.1'];

/** By kind: the export of the component, its interface, and the interfaces that it may import. */
export const KINDS = {
  harness: kind('harness', 'plugin/harness@0.1.2', BLOBS, MODEL, 'environment/environments@0.1.0', SANDBOX, BROWSER),
  environment: kind('provider', 'environment/provider@0.1.0'),
  reward: kind('reward', 'plugin/reward@0.1.2', ...SCORING, BROWSER, SERVICE),
  'group-reward': kind('groupReward', 'plugin/group-reward@0.1.2', MODEL, ...SCORING),
  judge: kind('judge', 'plugin/judge@0.1.2', MODEL, ...SCORING, BROWSER, SERVICE),
  'task-generator': kind('taskGenerator', 'plugin/task-generator@0.1.2', BLOBS, MODEL, SANDBOX, 'sandbox/creation@0.1.1'),
};

function kind(name, exported, ...imports) {
  return { name, exported: `espalier:${exported}`, imports: [...BASE, ...imports].map((path) => `espalier:${path}`) };
}

/** A world with what the plugin uses and no more. */
export function worldOf({ exported }, imports) {
  const lines = imports.map((path) => `  import ${path};\n`).join('');
  return `package espalier:built;\n\nworld built {\n${lines}  export espalier:base/configurable@0.1.0;\n  export ${exported};\n}\n`;
}
