import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { model, open, rollout, task, template } from './engine.mjs';

const TEMPLATES = new URL('../../templates/', import.meta.url);

for (const language of ['javascript', 'typescript']) {
  test(`${language}: the lock file has all that npm ci asks for, and no address`, () => {
    const read = (name) => JSON.parse(readFileSync(new URL(`${language}/all/${name}.tmpl`, TEMPLATES), 'utf8'));
    const { packages } = read('package-lock.json');
    const { dependencies, devDependencies } = read('package.json');
    assert.deepEqual([packages[''].dependencies, packages[''].devDependencies], [dependencies, devDependencies]);
    for (const { resolved = 'sdk', optionalDependencies = {} } of Object.values(packages)) {
      assert.equal(resolved, 'sdk');
      for (const [name, version] of Object.entries(optionalDependencies)) assert.equal(packages[`node_modules/${name}`]?.version, version, name);
    }
  });

  const opened = async (kind, ...more) => open(kind, (await template(language, kind)).default, ...more);

  test(`${language}: the harness acts until the world is done, or its turns are`, async () => {
    const world = {
      reset: () => ({ text: 'A door.', images: [], extra: null }),
      step: (action) => ({ observation: { text: `did ${action}`, images: [], extra: null }, reward: 0.5, done: action === 'open', info: 'null', extra: null }),
    };
    const play = async (settings, ...answers) => {
      const policy = model(...answers);
      const imports = { ...policy.imports, 'espalier:environment/environments': { open: () => world } };
      const { harness } = await opened('harness', { settings: { system: 'S', ...settings }, ...imports });
      const { outcome, answer, data } = harness.run(task());
      return [outcome, answer, JSON.parse(data), policy.said.filter(({ role }) => role === 'user').map(({ parts }) => parts[0].val)];
    };
    assert.deepEqual(await play({ max_turns: 9 }, 'hm', 'Action: look', 'x\nAction:  open'), [
      { tag: 'submitted' },
      'did open',
      { turns: 3, reward: 1 },
      ['Do it.\n\nA door.', 'There was no action in your answer. End it with one line `Action: <action>`.', 'did look'],
    ]);
    const [outcome, answer, data] = await play({ max_turns: 1 }, 'Action: look');
    assert.deepEqual([outcome, answer, data], [{ tag: 'limit', val: { tag: 'turns' } }, null, { turns: 1, reward: 0.5 }]);
  });

  test(`${language}: the environment answers guesses`, async () => {
    const { provider } = await opened('environment', { settings: { max_guesses: 4 } });
    const given = task({ data: { low: 1, high: 100 }, private: { secret: 42 } });
    assert.equal(provider.reset(given).text, 'Guess a number between 1 and 100.');
    const seen = (action) => {
      const { observation, reward, done, info } = provider.step(action);
      return [observation.text, reward, done, info];
    };
    assert.deepEqual(seen('50'), ['The number is lower.', null, false, '{"guesses":1}']);
    assert.deepEqual(seen('x'), ['`x` is not a number.', null, false, '{"guesses":2}']);
    assert.deepEqual(seen('7'), ['The number is higher.', null, false, '{"guesses":3}']);
    assert.deepEqual(seen('8'), ['The number is higher. No guesses left.', 0, true, '{"guesses":4}']);
    provider.reset(given);
    assert.deepEqual(seen('42'), ['Correct.', 1, true, '{"guesses":1}']);
    assert.deepEqual(provider.actions(), []);
    assert.throws(() => provider.reset(task({ data: { low: 1 } })), ({ tag, val }) => tag === 'invalid' && val === 'task.data: `high` is missing');
  });

  test(`${language}: the reward compares answers`, async () => {
    const scores = async (answer, settings = {}) => {
      const { reward } = await opened('reward', { settings: { case_sensitive: false, ...settings } });
      const given = rollout({ answer, turns: ['a', 'b'], task: { private: { answer: 'Four' } } });
      return reward.scoreRollout(given).map(({ name, value, reason }) => [name, value, reason]);
    };
    assert.deepEqual(await scores(' four '), [['reward', 1, 'expected "Four", got " four "'], ['turns', 2, '']]);
    assert.equal((await scores('four', { case_sensitive: true }))[0][1], 0);
    assert.deepEqual((await scores(undefined))[0], ['reward', 0, 'no answer']);
    const { reward } = await opened('reward');
    assert.throws(() => reward.scoreRollout(rollout()), ({ tag, val }) => tag === 'invalid' && val === 'task.private: `answer` is missing');
  });

  test(`${language}: the group reward follows the majority`, async () => {
    const { groupReward } = await opened('group-reward');
    const score = (...answers) => groupReward.scoreGroup(answers.map((answer) => rollout({ answer }))).map(([{ value }]) => value);
    assert.deepEqual(score('a', 'B', ' b', undefined), [0, 1, 1, 0]);
    assert.deepEqual(score('a', 'b', 'b', 'a'), [1, 0, 0, 1]);
    assert.deepEqual(score(undefined, undefined), [0, 0]);
    assert.equal(groupReward.scoreGroup([rollout({ answer: 'B' })])[0][0].reason, 'majority: "b" (1 of 1)');
  });

  test(`${language}: the judge averages what can be parsed`, async () => {
    const judged = async (...answers) => {
      const { judge } = await opened('judge', { settings: { rubric: 'R', votes: answers.length }, ...model(...answers).imports });
      return judge.judge(rollout({ answer: 'x' }));
    };
    const { scores, votes } = await judged('\\boxed{1}', 'hm', '\\boxed{0} no: \\boxed{1}', '\\boxed{0}');
    assert.deepEqual(votes.map(({ value }) => value), [1, null, 1, 0]);
    assert.equal(scores[0].value, 2 / 3);
    assert.equal(scores[0].reason, '2 of 3 votes for');
    assert.ok(votes.every(({ call }) => call.startsWith('c')));
    await assert.rejects(judged('hm', 'hm'), ({ tag, val }) => tag === 'other' && val.code === 'no-verdict' && val.text === 'none of the 2 votes could be parsed');
  });

  test(`${language}: the generator is the same everywhere`, async () => {
    const { taskGenerator } = await opened('task-generator', { settings: { digits: 2 } });
    const tasks = taskGenerator.generate({ count: 2, seed: 1, extra: null }).map((text) => JSON.parse(text));
    assert.deepEqual(tasks[0], { id: 'sum-1-0', instruction: 'What is 42 + 88?', data: { digits: 2 }, private: { answer: '130' } });
    const statistics = { attempts: 4, accuracy: 1, turns: 1, endings: [], failures: [], extra: null };
    const adapted = (digits, accuracy) =>
      taskGenerator.adapt(JSON.stringify({ ...tasks[0], data: { digits } }), { ...statistics, accuracy }).map((text) => JSON.parse(text));
    assert.equal(adapted(2, 0.5)[0].id, 'sum-1-0-harder');
    assert.deepEqual(adapted(2, 0.4)[0].data, { digits: 1 });
    assert.deepEqual([adapted(9, 1), adapted(1, 0)], [[], []]);
  });
}
