// Reports of harnesses.

import { json, optionalJson, returned } from './exports.js';

/** Ways to end a rollout; `more` has `answer` and `data`. */
export const report = {
  /** Done: score it. */
  submitted: (more = {}) => ({ ...more, outcome: 'submitted' }),
  /** Cannot be done: score it. */
  gaveUp: (more = {}) => ({ ...more, outcome: 'gave-up' }),
  /** Met a limit by the harness's own count: `turns`, `tokens`, `calls`, `wall`, `format` or another word. */
  limit: (limit, more = {}) => ({ ...more, outcome: 'limit', limit }),
};

const SCHEMA = {
  type: 'object',
  properties: {
    outcome: { type: 'string', minLength: 1 },
    limit: { type: ['string', 'null'], default: null },
    answer: { type: ['string', 'null'], default: null },
    data: { default: null },
    extra: { type: ['object', 'null'], default: null },
  },
  required: ['outcome'],
  additionalProperties: false,
};

const LIMITS = ['turns', 'tokens', 'calls', 'wall', 'format'];

/** A report for the engine. */
export function reportToWit(plugin, value) {
  const { outcome, limit, answer, data, extra } = returned(plugin, 'run', SCHEMA, value);
  return {
    outcome: outcomeToWit(outcome, limit),
    answer,
    data: json(plugin, 'run', data, 'data'),
    extra: optionalJson(plugin, 'run', extra, 'extra'),
  };
}

function outcomeToWit(outcome, limit) {
  if (outcome === 'submitted' || outcome === 'gave-up') return { tag: outcome };
  if (outcome !== 'limit') return { tag: 'other', val: outcome };
  return { tag: 'limit', val: LIMITS.includes(limit) ? { tag: limit } : { tag: 'other', val: limit ?? 'limit' } };
}
