// Machines to act on: commands, processes, shells, files.

import { open, waitAny } from 'espalier:sandbox/sandboxes@0.1.1';
import { callHost } from './failure.js';
import { options, shown } from './schema.js';
import { decode, encode } from './text.js';

const READ_MAX = 1 << 20;

const optional = (schema) => ({ ...schema, type: [schema.type, 'null'], default: null });
const FLAG = { type: 'boolean', default: false };

const RUN = {
  timeoutMs: optional({ type: 'integer', minimum: 1 }),
  stdin: { default: null },
  outputMax: optional({ type: 'integer', minimum: 0 }),
  keepWhole: FLAG,
  mergeStderr: FLAG,
};

const SHELL = {
  cwd: { default: null },
  env: { type: 'object', default: {} },
  user: optional({ type: 'string' }),
};

const SIZE = { rows: { type: 'integer', minimum: 1 }, columns: { type: 'integer', minimum: 1 } };

const COMMAND = {
  ...RUN,
  ...SHELL,
  terminal: optional({ type: 'object', properties: SIZE, required: ['rows', 'columns'] }),
};

const WRITE = {
  mode: optional({ type: 'integer', minimum: 0 }),
  owner: optional({ type: 'string' }),
  parents: { type: 'boolean', default: true },
  createNew: FLAG,
};

const PATCH = {
  root: { default: null },
  strip: optional({ type: 'integer', minimum: 0 }),
  fuzz: optional({ type: 'integer', minimum: 0 }),
  reverse: FLAG,
  dryRun: FLAG,
};

const RANGE = { offset: { type: 'integer', minimum: 0, default: 0 }, length: { type: 'integer', minimum: 0, default: READ_MAX } };

/** The sandbox of this name, as the task names it; the first call starts it. */
export function openSandbox(name = 'main') {
  return new Sandbox(callHost(() => open(name)));
}

/** A machine of the rollout. */
export class Sandbox {
  #open;

  constructor(open) {
    this.#open = open;
  }

  /** Runs a command to its end: shell text, or a list of a program and its arguments. */
  exec(command, more) {
    const asked = commandToWit(command, more);
    return outcomeFrom(callHost(() => this.#open.exec(asked)));
  }

  /** Starts a command and returns at once. */
  start(command, more) {
    const asked = commandToWit(command, more);
    return new Process(callHost(() => this.#open.start(asked)));
  }

  /** Opens a shell that keeps its folder and variables from one text to the next. */
  openShell(more) {
    const asked = options({ ...SHELL, program: optional({ type: 'string' }) }, more, 'openShell');
    Object.assign(asked, { cwd: pathOrNone(asked.cwd), env: pairs(asked.env), extra: null });
    return new Shell(callHost(() => this.#open.openShell(asked)));
  }

  /** Up to `length` bytes of a file from `offset`, 1 MiB at most. */
  readFile(path, range) {
    const { offset, length } = options(RANGE, range, 'readFile');
    const at = pathToWit(path);
    return callHost(() => this.#open.readFile(at, offset, length));
  }

  /** The same as text, with replacement characters. */
  readText(path, range) {
    return decode(this.readFile(path, range));
  }

  /** Writes a file as a whole, text or bytes, with the folders above it. */
  writeFile(path, content, more) {
    const [at, bytes, asked] = [pathToWit(path), bytesOf(content), writeToWit(more)];
    callHost(() => this.#open.writeFile(at, bytes, asked));
  }

  /** A whole file as a blob, 64 MiB at most. */
  fileToBlob(path) {
    const at = pathToWit(path);
    return callHost(() => this.#open.fileToBlob(at));
  }

  /** Writes a file with the bytes of a blob. */
  blobToFile(blob, path, more) {
    const [at, asked] = [pathToWit(path), writeToWit(more)];
    callHost(() => this.#open.blobToFile(blob, at, asked));
  }

  /** What stands in a folder, `depth` folders down. */
  listFolder(path, depth = 1) {
    const at = pathToWit(path);
    const entries = callHost(() => this.#open.listFolder(at, depth));
    return entries.map((entry) => ({ path: pathFrom(entry.path), ...statFrom(entry.stat), error: entry.error }));
  }

  /** What stands at a path; with `follow`, what a link there points to. */
  stat(path, { follow = true } = {}) {
    const at = pathToWit(path);
    return statFrom(callHost(() => this.#open.stat(at, follow)));
  }

  /** Makes a folder, with those above it. */
  makeFolder(path, more) {
    const [at, asked] = [pathToWit(path), writeToWit(more)];
    callHost(() => this.#open.makeFolder(at, asked));
  }

  /** Removes a file or, with `recursive`, a folder; returns how many entries went. */
  remove(path, { recursive = false, missingOk = false } = {}) {
    const at = pathToWit(path);
    return callHost(() => this.#open.remove(at, recursive, missingOk));
  }

  /** Moves a file or folder; with `replace` onto what is there. */
  move(from, to, { replace = false } = {}) {
    const [before, behind] = [pathToWit(from), pathToWit(to)];
    callHost(() => this.#open.moveTo(before, behind, replace));
  }

  /** Applies a unified or git diff: all of it or nothing. Returns the files that it is about. */
  applyPatch(patch, more) {
    const given = options(PATCH, more, 'applyPatch');
    const asked = { ...given, root: pathOrNone(given.root), extra: null };
    const files = callHost(() => this.#open.applyPatch(patch, asked));
    return files.map((file) => ({
      ...file,
      path: pathFrom(file.path),
      oldPath: file.oldPath === null ? null : pathFrom(file.oldPath),
      action: word(file.action),
    }));
  }

  /** What was changed since the set-up, as a blob with counts. */
  changes(root) {
    const below = pathOrNone(root);
    return callHost(() => this.#open.changes(below));
  }

  /** Puts changes of another sandbox of this rollout into this one. */
  applyChanges(blob) {
    callHost(() => this.#open.applyChanges(blob));
  }

  /** Keeps the file system as it is now; returns the name from which sandboxes can be made. */
  checkpoint() {
    return callHost(() => this.#open.checkpoint());
  }

  /** An address of the host behind which a TCP port of the sandbox is reached. */
  port(number) {
    return callHost(() => this.#open.port(number));
  }

  /** Lets the handle go; the machine stays as long as the engine says. */
  [Symbol.dispose]() {
    this.#open[Symbol.dispose]();
  }
}

/** Handles for `waitAny`, which the author has no use for. */
const handles = new WeakMap();

/** A command that was started. */
class Process {
  constructor(open) {
    handles.set(this, open);
  }

  /** Its process id, as the sandbox sees it. */
  get pid() {
    return callHost(() => handles.get(this).pid());
  }

  /** What came of it; null while it runs. */
  poll() {
    return optionalOutcome(callHost(() => handles.get(this).poll()));
  }

  /** Waits for its end; null when it still runs. */
  wait(timeoutMs) {
    return optionalOutcome(callHost(() => handles.get(this).wait(timeoutMs)));
  }

  /** Bytes of an output from `offset`; waits for them up to `waitMs`. */
  read({ channel = 'stdout', offset = 0, length = READ_MAX, waitMs = 0 } = {}) {
    const piece = callHost(() => handles.get(this).read(channel, offset, length, waitMs));
    return { ...piece, text: decode(piece.bytes) };
  }

  /** Text or bytes for its standard input; returns how many bytes were taken. */
  writeStdin(content) {
    const bytes = bytesOf(content);
    return callHost(() => handles.get(this).writeStdin(bytes));
  }

  /** No more input. */
  closeStdin() {
    callHost(() => handles.get(this).closeStdin());
  }

  /** Sends a signal to the command, or with `tree` to everything that it started; returns how many processes it reached. */
  signal(number = 15, { tree = false } = {}) {
    return callHost(() => handles.get(this).signal(number, tree));
  }

  /** Sets the size of its terminal. */
  resize(rows, columns) {
    callHost(() => handles.get(this).resize({ rows, columns }));
  }
}

/** Waits until one of these processes has ended; returns its place in the list, null when all still run. */
export function waitForAny(processes, timeoutMs) {
  return callHost(() => waitAny(processes.map((process) => handles.get(process)), timeoutMs));
}

/** A stateful shell. */
class Shell {
  #open;

  constructor(open) {
    this.#open = open;
  }

  /** Runs a text and waits for its end. */
  run(text, more) {
    const given = options(RUN, more, 'run');
    const asked = { ...given, stdin: bytesOrNone(given.stdin), extra: null };
    return outcomeFrom(callHost(() => this.#open.run(text, asked)));
  }

  /** Ends the shell and all that was started in it. */
  close() {
    callHost(() => this.#open.close());
  }
}

function commandToWit(command, more) {
  const words = Array.isArray(command) ? command : [command];
  if (!words.every((word) => typeof word === 'string')) {
    throw new TypeError(`command: expected shell text or a list of strings, got ${shown(command)}`);
  }
  const given = options(COMMAND, more, 'command');
  return {
    ...given,
    program: Array.isArray(command) ? { tag: 'argv', val: command } : { tag: 'shell', val: command },
    cwd: pathOrNone(given.cwd),
    env: pairs(given.env),
    stdin: bytesOrNone(given.stdin),
    extra: null,
  };
}

function outcomeFrom({ ending, stdout, stderr, durationMs, leftRunning, extra }) {
  const exitCode = ending.tag === 'exit-code' ? ending.val : null;
  return {
    ok: exitCode === 0,
    exitCode,
    signal: ending.tag === 'signal' ? ending.val : null,
    ended: ending.tag === 'exit-code' ? `exit code ${exitCode}` : ending.tag === 'signal' ? `signal ${ending.val}` : word(ending),
    stdout: shownOutput(stdout),
    stderr: shownOutput(stderr),
    whole: { stdout: stdout.whole, stderr: stderr.whole },
    durationMs,
    leftRunning,
    extra: extra === null ? null : JSON.parse(extra),
  };
}

function optionalOutcome(outcome) {
  return outcome === null ? null : outcomeFrom(outcome);
}

/** What is shown of an output, with what is left out between. */
function shownOutput({ head, leftOut, tail }) {
  return leftOut === 0 ? head : `${head}\n[${leftOut} bytes left out]\n${tail}`;
}

function statFrom(stat) {
  return { ...stat, kind: word(stat.kind), target: stat.target === null ? null : pathFrom(stat.target) };
}

function word({ tag, val }) {
  return tag === 'other' ? val : tag;
}

function writeToWit(more) {
  return { ...options(WRITE, more, 'options'), extra: null };
}

function pathToWit(path) {
  if (path instanceof Uint8Array) return { tag: 'bytes', val: path };
  if (typeof path !== 'string') throw new TypeError(`path: expected a string or bytes, got ${shown(path)}`);
  return { tag: 'text', val: path };
}

function pathOrNone(path) {
  return path === undefined || path === null ? null : pathToWit(path);
}

/** A path as text; as bytes where it is no UTF-8. */
function pathFrom({ val }) {
  return val;
}

function bytesOf(content) {
  if (typeof content === 'string') return encode(content);
  if (content instanceof Uint8Array) return content;
  throw new TypeError(`content: expected text or bytes, got ${shown(content)}`);
}

function bytesOrNone(content) {
  return content === undefined || content === null ? null : bytesOf(content);
}

function pairs(env) {
  return Object.entries(env).map(([name, value]) => [name, String(value)]);
}
