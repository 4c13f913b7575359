/// <reference lib="esnext.disposable" />

import type { BlobRef } from './common.js';

/** Text, or bytes where a name is no UTF-8. */
export type Path = string | Uint8Array;

export interface RunOptions {
  /** When it is over, the command and all that it started are killed. */
  timeoutMs?: number | null;
  stdin?: string | Uint8Array | null;
  /** Bytes of each output in the outcome, up to 1 MiB; default: 64 KiB. */
  outputMax?: number | null;
  /** Whether an output that the outcome does not show whole is kept as a blob. */
  keepWhole?: boolean;
  mergeStderr?: boolean;
}

export interface CommandOptions extends RunOptions {
  cwd?: Path | null;
  env?: { [name: string]: string | number };
  user?: string | null;
  /** Runs it on a terminal of this size. */
  terminal?: { rows: number; columns: number } | null;
}

/** What came of a command. One that fails is an outcome, not a failure. */
export interface Outcome {
  /** Whether it ended by itself with 0. */
  ok: boolean;
  exitCode: number | null;
  signal: number | null;
  /** In words: `exit code 1`, `timed-out`, `out-of-memory` ... */
  ended: string;
  /** As text, with a note where the middle is left out. */
  stdout: string;
  stderr: string;
  /** The whole outputs, with `keepWhole`. */
  whole: { stdout: BlobRef | null; stderr: BlobRef | null };
  durationMs: number;
  leftRunning: number;
  extra: any;
}

export interface FileStat {
  /** `file`, `folder`, `link` ... */
  kind: string;
  mode: number;
  userId: number;
  groupId: number;
  size: number;
  modifiedMs: number;
  target: Path | null;
}

export interface WriteOptions {
  mode?: number | null;
  owner?: string | null;
  /** Makes missing folders above it; default: true. */
  parents?: boolean;
  /** Refuses a file that is there already. */
  createNew?: boolean;
}

/** Work taken out of a sandbox. */
export interface Changes {
  blob: BlobRef;
  added: number;
  changed: number;
  removed: number;
  contentBytes: number;
}

/** A machine of the rollout. */
export interface Sandbox {
  /** Runs a command to its end: shell text, or a list of a program and its arguments. */
  exec(command: string | string[], options?: CommandOptions): Outcome;
  /** Starts a command and returns at once. */
  start(command: string | string[], options?: CommandOptions): Process;
  /** Opens a shell that keeps its folder and variables from one text to the next. */
  openShell(options?: {
    /** `bash` or `sh`; default: bash where the sandbox has it. */
    program?: string | null;
    cwd?: Path | null;
    env?: { [name: string]: string | number };
    user?: string | null;
  }): Shell;
  /** Up to `length` bytes of a file from `offset`, 1 MiB at most. */
  readFile(path: Path, range?: { offset?: number; length?: number }): Uint8Array;
  /** The same as text, with replacement characters. */
  readText(path: Path, range?: { offset?: number; length?: number }): string;
  /** Writes a file as a whole, with the folders above it. */
  writeFile(path: Path, content: string | Uint8Array, options?: WriteOptions): void;
  /** A whole file as a blob, 64 MiB at most. */
  fileToBlob(path: Path): BlobRef;
  /** Writes a file with the bytes of a blob. */
  blobToFile(blob: BlobRef, path: Path, options?: WriteOptions): void;
  /** What stands in a folder, `depth` folders down. */
  listFolder(path: Path, depth?: number): (FileStat & { path: Path; error: string | null })[];
  /** What stands at a path; with `follow` (the default), what a link there points to. */
  stat(path: Path, options?: { follow?: boolean }): FileStat;
  /** Makes a folder, with those above it. */
  makeFolder(path: Path, options?: WriteOptions): void;
  /** Removes a file or, with `recursive`, a folder; returns how many entries went. */
  remove(path: Path, options?: { recursive?: boolean; missingOk?: boolean }): number;
  /** Moves a file or folder; with `replace` onto what is there. */
  move(from: Path, to: Path, options?: { replace?: boolean }): void;
  /** Applies a unified or git diff: all of it or nothing. Returns the files that it is about. */
  applyPatch(
    patch: string,
    options?: { root?: Path | null; strip?: number | null; fuzz?: number | null; reverse?: boolean; dryRun?: boolean },
  ): { path: Path; oldPath: Path | null; action: string; hunks: number; shifted: number; fuzzy: number }[];
  /** What was changed since the set-up. */
  changes(root?: Path | null): Changes;
  /** Puts changes of another sandbox of this rollout into this one. */
  applyChanges(blob: BlobRef): void;
  /** Keeps the file system as it is now; returns the name from which sandboxes can be made. */
  checkpoint(): string;
  /** An address of the host behind which a TCP port of the sandbox is reached. */
  port(number: number): string;
  /** Lets the handle go; the machine stays as long as the engine says. */
  [Symbol.dispose](): void;
}

/** A command that was started. */
export interface Process {
  readonly pid: number;
  /** What came of it; null while it runs. */
  poll(): Outcome | null;
  /** Waits for its end; null when it still runs. */
  wait(timeoutMs: number): Outcome | null;
  /** Bytes of an output from `offset`; waits for them up to `waitMs`. */
  read(options?: { channel?: 'stdout' | 'stderr'; offset?: number; length?: number; waitMs?: number }): {
    offset: number;
    bytes: Uint8Array;
    text: string;
    total: number;
    ended: boolean;
  };
  /** Text or bytes for its standard input; returns how many bytes were taken. */
  writeStdin(content: string | Uint8Array): number;
  closeStdin(): void;
  /** Sends a signal (15 unless told otherwise); returns how many processes it reached. */
  signal(number?: number, options?: { tree?: boolean }): number;
  resize(rows: number, columns: number): void;
}

/** A stateful shell. */
export interface Shell {
  /** Runs a text and waits for its end. */
  run(text: string, options?: RunOptions): Outcome;
  /** Ends the shell and all that was started in it. */
  close(): void;
}

/** The sandbox of this name (`main` unless told otherwise), as the task names it; the first call starts it. */
export function openSandbox(name?: string): Sandbox;
/** Waits until one of these processes has ended; returns its place in the list, null when all still run. */
export function waitForAny(processes: readonly Process[], timeoutMs: number): number | null;
/** A new sandbox of this name, with the task's image, files and set-up, that no agent has touched; at most 8 alive at a time. */
export function openFreshSandbox(name?: string): Sandbox;
/** A new sandbox as `spec` says, with the keys that a task has of a sandbox; at most 8 alive at a time. */
export function createSandbox(spec: object): Sandbox;
