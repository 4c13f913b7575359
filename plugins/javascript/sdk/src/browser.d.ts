/// <reference lib="esnext.disposable" />

import type { BlobRef } from './common.js';
import type { Tool } from './conversation.js';

/** The element that an action was on, as it was before. */
export interface PageElement {
  /** A short line: `button "Save"`. */
  text: string;
  /** As assistive technology sees it; empty for none. */
  role: string;
  /** Accessible name; empty for none. */
  name: string;
  /** Name of the tag, in lower case. */
  tag: string;
  /** In the viewport, in CSS pixels. */
  area: { x: number; y: number; width: number; height: number } | null;
  extra: any;
}

/** A tab. */
export interface Tab {
  /** From 0. */
  index: number;
  url: string;
  title: string;
  isActive: boolean;
  extra: any;
}

/** What an action led to. */
export type Effect =
  | { kind: 'navigated'; url: string; title: string; status: number | null; withinDocument: boolean }
  | { kind: 'navigation-failed'; url: string; reason: string }
  | { kind: 'blocked'; url: string }
  | ({ kind: 'tab-opened' } & Tab)
  | { kind: 'tab-closed'; index: number }
  | { kind: 'dialog'; dialog: string; message: string; answer: string }
  | { kind: 'downloaded'; name: string; url: string; blob: BlobRef | null; length: number }
  | { kind: 'download-failed'; name: string; reason: string }
  | { kind: 'console-errors'; count: number; first: string }
  | { kind: 'scrolled'; what: string; x: number; y: number; atEnd: boolean }
  | { kind: 'changed'; summary: string }
  | { kind: 'nothing-changed' }
  | { kind: 'other'; value: any };

/** One action, carried out or not. */
export interface BrowserStep {
  /** The tool. */
  name: string;
  /** Whether it was carried out. */
  done: boolean;
  /** `done`, `failed`, `skipped`, `ended`, `asked`, or `other` for anything newer. */
  outcome: 'done' | 'failed' | 'skipped' | 'ended' | 'asked' | 'other';
  /** Of `failed`: a stable word for programs, such as `stale-reference`, and a sentence for the model. */
  problem: { code: string; text: string } | null;
  /** Of `skipped`: why. */
  skipped: string | null;
  /** Of `ended`: the model's answer, and with `terminate` its `success` or `failure`. */
  ended: { response: string; status: string | null } | null;
  /** Of `asked`: the message for the user. */
  asked: string | null;
  /** Of `other`. */
  other: any;
  element: PageElement | null;
  /** Where it acted, in CSS pixels of the viewport. */
  position: { x: number; y: number } | null;
  /** What had happened since the step before, by itself. */
  meanwhile: Effect[];
  effects: Effect[];
  /** How the page came to rest: `quiet`, `bound`, `navigation`, `dialog`, `closed`. */
  settled: { cause: string; afterMs: number; pending: string[] } | null;
  durationMs: number;
  /** What the model is told. */
  text: string;
  extra: any;
}

/** A browser of the rollout. */
export interface Browser {
  /**
   * The tools that the experiment gives the model in this browser, for a conversation. `runTools` carries out each call by itself;
   * `act` also skips those that were meant for a page that is not there any more.
   */
  tools(): Tool[];
  /** Carries out calls of the model one after another, 32 at most, each until the page has settled. One step for each. */
  act(calls: readonly { name: string; arguments: any }[]): BrowserStep[];
  /** Carries out one tool with arguments of the plugin's own. */
  tool(name: string, values?: object): BrowserStep;
  /** The tabs. */
  tabs(): Tab[];
  /** The active tab as text, with references that are good until the next one. */
  snapshot(options?: {
    /** Bound of the text in tokens, estimated; default: 2,000. */
    tokensMax?: number | null;
    /** Only what is new or changed since the last one, and what is gone. */
    changes?: boolean;
    /** Also what is scrolled away. */
    wholePage?: boolean;
  }): { text: string; tokens: number; leftOut: number; extra: any };
  /** The active tab as a picture, kept as a blob. */
  screenshot(options?: {
    /** Default: `png`. */
    format?: 'png' | 'jpeg' | 'webp';
    /** 1 to 100, not for PNG; default: 80. */
    quality?: number | null;
    /** Size over that of the viewport, up to 4. */
    scale?: number | null;
    /** The page from top to bottom. */
    fullPage?: boolean;
  }): { blob: BlobRef; width: number; height: number; extra: any };
  /**
   * Value of a JavaScript expression where the page's own scripts run; promises are awaited. The page can forge it: a reward uses
   * `evaluateIsolated`, or asks the page's server. One that throws is a failure with the code `script`.
   */
  evaluate(expression: string): any;
  /** The same in a world of its own on the same document. */
  evaluateIsolated(expression: string): any;
  /** Cookies and the local storage of each origin. */
  storageState(): { cookies: any[]; origins: any[] };
  /** Lets the handle go; the browser stays until the rollout is scored. */
  [Symbol.dispose](): void;
}

/** The browser of this name (`main` unless told otherwise), as the task names it; the first call starts it, at its start page. */
export function openBrowser(name?: string): Browser;
