import type { Json } from './schema.js';

/** How a rollout ended, for rewards and people. */
export interface Report {
  /** `submitted`, `gave-up`, `limit`, or the harness's own word, which counts as submitted. */
  outcome: string;
  /** Where the outcome is `limit`: `turns`, `tokens`, `calls`, `wall`, `format` or another word. */
  limit?: string | null;
  /** The final answer, where the task asks for one. */
  answer?: string | null;
  data?: Json;
  extra?: object | null;
}

type More = Pick<Report, 'answer' | 'data' | 'extra'>;

/** Ways to end a rollout. */
export const report: {
  /** Done: score it. */
  submitted(more?: More): Report;
  /** Cannot be done: score it. */
  gaveUp(more?: More): Report;
  /** Met a limit by the harness's own count. */
  limit(limit: 'turns' | 'tokens' | 'calls' | 'wall' | 'format' | (string & {}), more?: More): Report;
};
