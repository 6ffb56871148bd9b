import { describe, expect, it } from 'vitest';
import { commandOf, programOf } from '../../api/reproduce';
import { shellWord } from '../../api/shell';
import {
  amountOf,
  arrayOf,
  bodyOf,
  draftOf,
  emptyDraft,
  exceeded,
  isIndices,
  largest,
  requestOf,
  searchOf,
  sortByRoom,
  sortByVerdict,
  verdictTone,
} from './rules';

const draft = {
  ...emptyDraft,
  image: 'python',
  name: 'my-own',
  amounts: { cpu: '2', mem: '1g', 'cuda.device': '0' },
  size: 2,
  mounts: ['data'],
};

describe('the draft in the address', () => {
  it('is the same after a round trip', () => {
    const full = {
      ...draft,
      type: 'batch' as const,
      command: 'echo 1,2',
      array: '1-9%2',
      mode: 'multi-node' as const,
      count: 3,
    };
    expect(draftOf({ ...searchOf(full) })).toEqual(full);
  });

  it('says nothing of what has its default', () => {
    expect(searchOf(emptyDraft)).toEqual({});
  });

  it.each([
    [{ size: 'many', count: -3, type: 'odd', mode: 7 }, emptyDraft],
    [
      { size: 99_999, count: 1_000 },
      { ...emptyDraft, size: 1024, count: 100 },
    ],
    [{ r: 'cpu,=3,mem=1g' }, { ...emptyDraft, amounts: { mem: '1g' } }],
  ])('reads %o without failing', (search, expected) => {
    expect(draftOf(search)).toEqual(expected);
  });
});

describe('an array', () => {
  it.each(['1-1000', '0-99:5', '1,3,7-9', '1-10%4', '3', ' 1, 2 '])('has the indices %s', (text) =>
    expect(isIndices(text.trim())).toBe(true),
  );
  it.each(['', 'a', '1-', '%4', '1-9%', '1-9%0', '1;rm', '1-9:0'])('has no indices %s', (text) =>
    expect(isIndices(text)).toBe(false),
  );
  it('is of batch sessions only', () => {
    expect(arrayOf({ ...draft, array: '1-9' })).toBe('');
    expect(arrayOf({ ...draft, type: 'batch', array: ' 1-9 ' })).toBe('1-9');
  });
  it('is submitted by the command line, and created by the client library', () => {
    const request = requestOf({ ...draft, type: 'batch', command: "echo 'a'", array: '1-9%2' });
    expect(commandOf(request)).toBe(
      `backend.ai submit -t my-own --array 1-9%2 -r cpu=2 -r mem=1g --cluster-size 2 -m data python ${shellWord("echo 'a'")}`,
    );
    expect(programOf(request)).toContain('api.SessionArray.create(\n        "python",\n        "1-9%2",\n');
    expect(programOf(request)).not.toContain('type_=');
  });
});

describe('the request', () => {
  it('has what was asked for, and no slot of which nothing is wanted', () => {
    expect(bodyOf(draft)).toMatchObject({
      image: 'python',
      clusterSize: 2,
      enqueueOnly: true,
      config: { resources: { cpu: '2', mem: '1g' }, mounts: ['data'] },
    });
  });

  it.each([emptyDraft, { ...draft, type: 'batch' as const, command: ' ' }])(
    'is not there before it is complete',
    (it) => {
      expect(bodyOf(it)).toBeNull();
    },
  );

  it('reads as a command that a shell takes apart again', () => {
    expect(commandOf(requestOf({ ...draft, type: 'batch', command: "echo 'a b'" }))).toBe(
      "backend.ai start -t my-own --type batch -c 'echo '\\''a b'\\''' -r cpu=2 -r mem=1g --cluster-size 2 -m data python",
    );
    expect(programOf(requestOf({ ...draft, name: 'a"b' }))).toContain(
      '        name="a\\"b",\n        resources={"cpu": "2", "mem": "1g"},',
    );
    expect(shellWord('$(rm -rf /)')).toBe("'$(rm -rf /)'");
  });
});

describe('quantities', () => {
  it.each([
    ['4', 4],
    ['1.5g', 1.5 * 2 ** 30],
    ['256m', 256 * 2 ** 20],
    ['', Number.NaN],
    ['much', Number.NaN],
    ['-1', Number.NaN],
  ])('%s is %d', (text, amount) => {
    expect(amountOf(text)).toBe(amount);
  });

  const limits = { policy: 8, group: 20, agent: 4 };
  it.each([
    [4, 1, true, []],
    [5, 1, true, ['agent']],
    [3, 2, true, ['agent']],
    [3, 2, false, []],
    [5, 2, false, ['agent', 'policy']],
  ])('%d of %d kernels, together: %s', (amount, kernels, together, names) => {
    expect(exceeded(amount, kernels, together, limits)).toEqual(names);
  });

  it('has a largest amount that exceeds nothing', () => {
    expect(largest(2, true, limits)).toBe(2);
    expect(largest(4, false, limits)).toBe(2);
    expect(exceeded(largest(2, true, limits), 2, true, limits)).toEqual([]);
  });
});

it('waits have three looks', () => {
  expect(verdictTone({ verdict: 'now', remedy: null })).toBe('good');
  expect(verdictTone({ verdict: 'waits', remedy: 'time' })).toBe('busy');
  expect(verdictTone({ verdict: 'waits', remedy: 'others' })).toBe('wait');
  expect(verdictTone({ verdict: 'never', remedy: 'change' })).toBe('bad');
});

it('presets that start now come first', () => {
  const presets = ['never', 'waits', undefined, 'now'].map((verdict) => ({ name: verdict ?? 'asked', verdict }));
  expect(sortByVerdict(presets).map((preset) => preset.name)).toEqual(['now', 'waits', 'never', 'asked']);
});

it('presets with enough free come before the others, each kind by name', () => {
  const presets = [
    { name: 'gpu-10', allocatable: false },
    { name: 'gpu-2', allocatable: false },
    { name: 'small', allocatable: true },
  ];
  expect(sortByRoom(presets).map(({ name }) => name)).toEqual(['small', 'gpu-2', 'gpu-10']);
});
