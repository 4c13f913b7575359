// What an experiment can say about the dialogue; the host checks it and fills in the defaults.

const text = (description, initial) => ({ type: 'string', description, default: initial });
const optional = (type, description, more = {}) => ({ type: [type, 'null'], description, ...more });
const texts = (description) => ({ type: 'array', items: { type: 'string' }, description, default: [] });
const count = (description, initial, maximum) => ({
  type: 'integer',
  description,
  default: initial,
  minimum: 1,
  maximum,
});

export const schema = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  title: 'Settings',
  type: 'object',
  additionalProperties: false,
  properties: {
    model: text('Name of the model in the experiment.', 'policy'),
    system: optional('string', 'System message; default: none.'),
    prompt: text(
      'Text before the examples.',
      'You act in a text world, one action at a time. Think first, then end your answer with one line of the form ' +
        '`Action: <action>`.',
    ),
    examples: texts('Worked examples, in order.'),
    opening: text(
      'First message, with `{prompt}`, `{examples}`, `{instruction}` and `{observation}`.',
      '{prompt}\n\n{examples}\n\n{instruction}\n\n{observation}',
    ),
    reply: text('Message after an action, with `{observation}`.', '{observation}'),
    form: {
      enum: ['action', 'prompt', 'line'],
      description: 'The form of an action in an answer: after `Action:`, after `>`, or as its first line.',
      default: 'action',
    },
    format_error: text(
      'Observation for an answer without an action.',
      'There was no action in your answer. End it with one line of the form `Action: <action>`.',
    ),
    format_errors_max: count('Number of consecutive answers without an action that end the rollout.', 3, 1000),
    max_turns: count('Number of answers that end the rollout.', 20, 10000),
    give_up: optional('string', 'Action with which the model gives up; default: none.'),
    stop: texts("Stop strings that end an answer; empty: those of the experiment."),
    max_tokens: optional('integer', "Maximum tokens of one answer; default: that of the experiment.", { minimum: 1 }),
    temperature: optional('number', "Temperature of the answers; default: that of the experiment.", {
      minimum: 0,
      maximum: 100,
    }),
  },
};
