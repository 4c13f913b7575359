// The task generator {{name}}: sums that become harder when they are solved.

import { taskGenerator } from 'espalier-sdk/task-generator';

const MODULUS = 2147483647;

/** The two numbers of a sum, below 10^digits: the same for the same seed and place. */
export function numbers(seed, place, digits) {
  let state = (seed % MODULUS) + place + 1;
  const next = () => {
    state = (state * 48271) % MODULUS;
    return state % 10 ** digits;
  };
  return [next(), next()];
}

function sum(id, [a, b], digits) {
  return { id, instruction: `What is ${a} + ${b}?`, data: { digits }, private: { answer: String(a + b) } };
}

export default taskGenerator({
  // What an experiment can set under [tasks.settings]; one without a default must be set.
  settings: {
    digits: { type: 'integer', minimum: 1, maximum: 9, default: 2, description: 'Digits of the numbers.' },
  },

  generate({ count, seed }, { digits }) {
    const places = Array.from({ length: count }, (_, place) => place);
    return places.map((place) => sum(`sum-${seed}-${place}`, numbers(seed, place, digits), digits));
  },

  // Called when the group of a task is done, with how it went.
  adapt(task, { accuracy }) {
    const harder = accuracy >= 0.5;
    const digits = Math.min(9, Math.max(1, task.data.digits + (harder ? 1 : -1)));
    if (digits === task.data.digits) return [];
    const id = `${task.id}-${harder ? 'harder' : 'easier'}`;
    return [sum(id, numbers(new TextEncoder().encode(task.id).length, 0, digits), digits)];
  },
});
