// Scores of rewards and judges.

import { optionalJson, returned } from './exports.js';

const SCORE = {
  type: 'object',
  properties: {
    name: { type: 'string', minLength: 1, default: 'reward' },
    value: { type: 'number' },
    turn: { type: ['integer', 'null'], minimum: 0, default: null },
    reason: { type: 'string', default: '' },
    extra: { type: ['object', 'null'], default: null },
  },
  required: ['value'],
  additionalProperties: false,
};

const SCORES = { type: 'array', items: SCORE };

/** A number, a score or a list of them as a list; anything else is left for the check. */
function listed(value) {
  const score = (one) => (typeof one === 'number' ? { value: one } : one);
  if (Array.isArray(value)) return value.map(score);
  return typeof value === 'number' || (typeof value === 'object' && value?.value !== undefined) ? [score(value)] : value;
}

/** Scores or votes, whose place in what was returned is `path`. */
function toWit(plugin, name, given, path = '') {
  return given.map((one, at) => ({ ...one, extra: optionalJson(plugin, name, one.extra, `${path}[${at}].extra`) }));
}

/** The scores of one rollout for the engine. */
export function scoresToWit(plugin, name, value) {
  return toWit(plugin, name, returned(plugin, name, SCORES, listed(value)));
}

/** One list of scores for each rollout. */
export function groupToWit(plugin, name, value, count) {
  const schema = { type: 'array', items: SCORES, minItems: count, maxItems: count };
  const lists = Array.isArray(value) ? value.map(listed) : value;
  return returned(plugin, name, schema, lists).map((scores, at) => toWit(plugin, name, scores, `[${at}]`));
}

const JUDGEMENT = {
  type: 'object',
  properties: {
    scores: SCORES,
    votes: {
      type: 'array',
      default: [],
      items: {
        type: 'object',
        properties: {
          turn: { type: ['integer', 'null'], minimum: 0, default: null },
          value: { type: ['number', 'null'] },
          text: { type: 'string', default: '' },
          call: { type: ['string', 'null'], default: null },
          extra: { type: ['object', 'null'], default: null },
        },
        required: ['value'],
        additionalProperties: false,
      },
    },
    extra: { type: ['object', 'null'], default: null },
  },
  required: ['scores'],
  additionalProperties: false,
};

/** What a judge gives, for the engine. */
export function judgementToWit(plugin, value) {
  const given = value !== null && typeof value === 'object' ? { ...value, scores: listed(value.scores) } : value;
  const { scores, votes, extra } = returned(plugin, 'judge', JUDGEMENT, given);
  return {
    scores: toWit(plugin, 'judge', scores, 'scores'),
    votes: toWit(plugin, 'judge', votes, 'votes'),
    extra: optionalJson(plugin, 'judge', extra, 'extra'),
  };
}
