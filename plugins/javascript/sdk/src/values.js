// What plugins are given, as plain objects: a task, a finished rollout, messages, statistics.

import { Failure } from './failure.js';
import { checked } from './schema.js';

const parsed = (text) => (text === null || text === undefined ? null : JSON.parse(text));

/** A task; `data` and `private` are checked against what the plugin declared. Throws `invalid` failures. */
export function taskFrom(view, plugin) {
  const part = (name, text) => {
    const value = parsed(text);
    const schema = plugin.task[name];
    if (schema === undefined) return value;
    try {
      return checked(schema, value ?? {}, `task.${name}`);
    } catch (error) {
      throw Failure.invalid(error.message);
    }
  };
  return {
    id: view.id,
    instruction: view.instruction,
    environment: view.environment,
    sandboxes: view.sandboxes,
    tags: view.tags,
    data: part('data', view.data),
    private: part('private', view.privateData),
    extra: parsed(view.extra),
  };
}

/** A call of a tool, with its arguments as an object. */
export function toolCallFrom({ id, name, arguments: text }) {
  return { id, name, arguments: JSON.parse(text) };
}

/** A message with its text, images and the parts as they came. */
export function messageFrom({ role, parts, extra }) {
  const of = (tag) => parts.filter((part) => part.tag === tag).map((part) => part.val);
  return { role, text: of('text').join(''), textBlobs: of('text-blob'), images: of('image'), parts, extra: parsed(extra) };
}

function reportFrom(report) {
  if (report === null || report === undefined) return null;
  const { tag, val } = report.outcome;
  return {
    outcome: tag === 'other' ? val : tag,
    limit: tag === 'limit' ? (val.tag === 'other' ? val.val : val.tag) : null,
    answer: report.answer,
    data: JSON.parse(report.data),
    extra: parsed(report.extra),
  };
}

/** A finished rollout. */
export function rolloutFrom(view, plugin) {
  const report = reportFrom(view.report);
  return {
    id: view.rolloutId,
    task: taskFrom(view.task, plugin),
    status: view.status,
    stopReason: view.stopReason,
    report,
    answer: report?.answer ?? null,
    turns: view.turns.map((turn) => {
      const message = messageFrom(turn.message);
      return {
        index: turn.index,
        text: message.text,
        message,
        toolCalls: turn.toolCalls.map(toolCallFrom),
        answers: turn.answers.map(messageFrom),
        extra: parsed(turn.extra),
      };
    }),
    steps: view.steps.map((step) => ({ ...step, info: JSON.parse(step.info), extra: parsed(step.extra) })),
    blobs: Object.fromEntries(view.blobs),
    extra: parsed(view.extra),
  };
}

/** How a task went. */
export function statisticsFrom(view) {
  return { ...view, endings: Object.fromEntries(view.endings), extra: parsed(view.extra) };
}

/** What is asked of a task generator. */
export function requestFrom({ count, seed, extra }) {
  const { batch = 0, accepted = 0, ...more } = parsed(extra) ?? {};
  return { count, seed, batch, accepted, extra: more };
}
