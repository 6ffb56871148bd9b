import { describe, expect, it } from 'vitest';
import {
  isPromotable,
  linesOfSteps,
  policyChangeOf,
  policyDraftFrom,
  policyDraftOf,
  policyOf,
  stepsOfLines,
} from './rollout';

const guard = { max_error_rate: 0.05, max_ttft_ratio: null, min_token_rate_ratio: null, min_requests: 20 };
const canary = {
  kind: 'canary',
  max_surge: 1,
  max_unavailable: 0,
  steps: [
    { weight: 10, hold_s: 300 },
    { weight: 50, hold_s: null },
  ],
  watch_s: 60,
  guard,
} as const;

describe('policyOf', () => {
  it('reads what the manager tells', () => expect(policyOf({ ...canary, soak_s: 1 })).toEqual(canary));
  it('has defaults for what cannot be read', () => {
    expect(policyOf({})).toEqual({ kind: 'rolling', max_surge: 1, max_unavailable: 0, steps: [], watch_s: 60, guard });
    expect(policyOf({ kind: 'new', steps: 'x', guard: null }).guard).toBeNull();
  });
});

describe('isPromotable', () => {
  it.each([
    ['canary', 'rolling-out', 0, true],
    ['canary', 'rolling-out', 1, true],
    ['canary', 'rolling-out', 2, false],
    ['canary', 'pending', 0, false],
    ['canary', 'active', 0, false],
    ['blue-green', 'rolling-out', 0, false],
    ['blue-green', 'rolling-out', 1, true],
    ['rolling', 'rolling-out', 1, false],
  ] as const)('%s, %s, step %s: %s', (kind, status, step, is) =>
    expect(isPromotable({ ...canary, kind }, { status, step })).toBe(is),
  );
});

describe('the steps of a canary', () => {
  it('come back', () => {
    expect(linesOfSteps(canary.steps)).toBe('10% 5m\n50%');
    expect(stepsOfLines(linesOfSteps(canary.steps))).toEqual(canary.steps);
    expect(stepsOfLines(' 2.5 90 \n\n')).toEqual([{ weight: 2.5, hold_s: 90 }]);
  });
  it.each(['', '101%', '-1%', 'x', '10% long', '10%\n?'])('are no steps: %j', (text) =>
    expect(stepsOfLines(text)).toBeNull(),
  );
});

describe('the draft of a policy', () => {
  const draft = policyDraftOf(canary);
  it('says the same policy again', () => {
    expect(policyChangeOf(draft)).toEqual({ change: { kind: 'canary', steps: canary.steps, guard }, wrong: [] });
  });
  it('says of each kind only what is its own', () => {
    expect(policyChangeOf({ ...draft, kind: 'blue-green', watch: '2m', steps: 'x', hasGuard: false })).toEqual({
      change: { kind: 'blue-green', watch_s: 120, guard: null },
      wrong: [],
    });
    expect(policyChangeOf({ ...draft, kind: 'rolling', steps: 'x', watch: 'x' }).wrong).toEqual([]);
    expect(policyChangeOf({ ...draft, surge: 'x', unavailable: '' }).wrong).toEqual([]);
  });
  it('says how many replicas a rolling update may have more and fewer', () => {
    const rolling = { ...policyDraftOf(policyOf({ max_surge: 2, max_unavailable: 3 })), hasGuard: false };
    expect(policyChangeOf(rolling).change).toEqual({ kind: 'rolling', max_surge: 2, max_unavailable: 3, guard: null });
    expect(policyChangeOf({ ...rolling, surge: '-1', unavailable: '1.5' }).wrong).toEqual(['surge', 'unavailable']);
  });
  it('names what cannot be read', () => {
    const bad = { steps: '', errorPercent: '101', firstByteRatio: '-1', tokenRatio: 'x', requests: '' };
    expect(policyChangeOf({ ...draft, ...bad }).wrong).toEqual([
      'steps',
      'errorPercent',
      'requests',
      'firstByteRatio',
      'tokenRatio',
    ]);
    expect(policyChangeOf({ ...draft, kind: 'blue-green', watch: '?' }).wrong).toEqual(['watch']);
  });
  it('takes an empty bound for none', () =>
    expect(policyChangeOf({ ...draft, errorPercent: '' }).change.guard).toEqual({ ...guard, max_error_rate: null }));
});

describe('the draft of a policy in an address', () => {
  it('comes back as it was', () => {
    const draft = { ...policyDraftOf(policyOf({ kind: 'canary' })), steps: '10% 5', hasGuard: false };
    expect(policyDraftFrom(JSON.stringify(draft))).toEqual(draft);
    expect(policyDraftFrom('')).toBeNull();
  });
  it.each(['{', 'null', '7', '{"kind":"x","steps":3,"hasGuard":1}'])('is the usual one where %s is no draft', (text) =>
    expect(policyDraftFrom(text)).toEqual(policyDraftOf(policyOf({}))),
  );
});
