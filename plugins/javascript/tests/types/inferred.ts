// What follows from schemas: each expected error must be one, or the compiler says so.

import { Conversation, harness, openBrowser, report, tool } from 'espalier-sdk/harness';
import { Service } from 'espalier-sdk/reward';

const add = tool({
  name: 'add',
  parameters: {
    a: { type: 'number' },
    how: { enum: ['plus', 'minus'], default: 'plus' },
    words: { type: 'array', items: { type: 'string' }, default: [] },
    maybe: { type: ['integer', 'null'], default: null },
    inner: { type: 'object', properties: { x: { type: 'boolean' } } },
  },
  run({ a, how, words, maybe, inner }) {
    const known: [number, 'plus' | 'minus', string[], number | null, boolean] = [a, how, words, maybe, inner.x];
    // @ts-expect-error a number is not a string
    const wrong: string = a;
    return [...known.map(String), wrong];
  },
});

export default harness({
  settings: { max: { type: 'integer', default: 3 } },
  task: { data: { low: { type: 'integer' } } },
  run(task, settings) {
    const sum: number = settings.max + task.data.low;
    // @ts-expect-error there is no such setting
    settings.other;
    console.log(sum);
    new Conversation('policy', { tools: [add], temperature: 0 });
    // @ts-expect-error there is no such option
    new Conversation('policy', { maxToken: 3 });
    return report.limit('turns', { data: { sum } });
  },
});

// @ts-expect-error a harness returns a report
harness({ run: () => 5 });

// @ts-expect-error a schema has a type by name
harness({ settings: { a: { type: 'text' } }, run: () => report.submitted() });

export function acted(): string {
  const browser = openBrowser();
  const [step] = browser.act(new Conversation('policy', { tools: browser.tools() }).complete().toolCalls);
  for (const effect of step.effects) if (effect.kind === 'navigated') return effect.url;
  // @ts-expect-error a step has no such outcome
  if (step.outcome === 'failure') return '';
  // @ts-expect-error there is no such format
  browser.screenshot({ format: 'gif' });
  // @ts-expect-error a service is asked by GET and POST
  new Service('shop').request('PUT', '/post');
  return step.problem?.code ?? new Service('shop').get('/go');
}
