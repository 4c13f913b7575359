// The environment {{name}}: guess a number.

import { environment } from 'espalier-sdk/environment';

export default environment({
  // What an experiment can set under [environment.settings]; one without a default must be set.
  settings: {
    max_guesses: { type: 'integer', minimum: 1, default: 10, description: 'Guesses after which the episode ends.' },
  },

  // What a task must have; a task without it ends as a failure that names the field.
  task: {
    data: { low: { type: 'integer' }, high: { type: 'integer' } },
    private: { secret: { type: 'integer' } },
  },

  // Starts an episode. What is returned is its world: it lives until the rollout ends.
  reset(task, settings) {
    const { low, high } = task.data;
    const { secret } = task.private;
    let guesses = 0;

    const hint = (action: string): string | null => {
      const guess = /^\s*[+-]?\d+\s*$/.test(action) ? Number(action) : NaN;
      if (Number.isNaN(guess)) return `\`${action}\` is not a number.`;
      if (guess === secret) return null;
      return guess < secret ? 'The number is higher.' : 'The number is lower.';
    };

    return {
      text: `Guess a number between ${low} and ${high}.`,

      step(action) {
        guesses += 1;
        const info = { guesses };
        const text = hint(action);
        if (text === null) return { text: 'Correct.', reward: 1, done: true, info };
        if (guesses < settings.max_guesses) return { text, info };
        return { text: `${text} No guesses left.`, reward: 0, done: true, info };
      },
    };
  },
});
