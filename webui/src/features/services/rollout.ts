import { secondsOf, secondsText } from '../../api/amounts';

export const rolloutKinds = ['rolling', 'canary', 'blue-green'] as const;
export type RolloutKind = (typeof rolloutKinds)[number];

export interface CanaryStep {
  /** Per cent of the requests. */
  weight: number;
  /** Null: until somebody promotes it. */
  hold_s: number | null;
}

export interface Guard {
  max_error_rate: number | null;
  max_ttft_ratio: number | null;
  min_token_rate_ratio: number | null;
  min_requests: number;
}

/** How revisions are rolled out, as the manager tells it. */
export interface RolloutPolicy {
  kind: RolloutKind;
  /** Replicas beyond the number that is asked for; of a rolling update. */
  max_surge: number;
  /** Ready replicas that may lack meanwhile. If both are zero, the manager takes one of surge. */
  max_unavailable: number;
  steps: readonly CanaryStep[];
  watch_s: number;
  guard: Guard | null;
}
export type PolicyChange = Partial<RolloutPolicy>;

const usualGuard: Guard = {
  max_error_rate: 0.05,
  max_ttft_ratio: null,
  min_token_rate_ratio: null,
  min_requests: 20,
};

const numberOf = (value: unknown): number | null => (typeof value === 'number' ? value : null);
const objectOf = (value: unknown) =>
  (typeof value === 'object' && value !== null ? value : {}) as Record<string, unknown>;

/** Returns the parts of a policy that are shown; what is not there is as the manager has it by default. */
export function policyOf(value: Readonly<Record<string, unknown>>): RolloutPolicy {
  const guard = value.guard === null ? null : objectOf(value.guard);
  return {
    kind: rolloutKinds.find((kind) => kind === value.kind) ?? 'rolling',
    max_surge: numberOf(value.max_surge) ?? 1,
    max_unavailable: numberOf(value.max_unavailable) ?? 0,
    steps: (Array.isArray(value.steps) ? value.steps : []).map(objectOf).map((step) => ({
      weight: numberOf(step.weight) ?? 0,
      hold_s: numberOf(step.hold_s),
    })),
    watch_s: numberOf(value.watch_s) ?? 60,
    guard: guard && {
      max_error_rate: 'max_error_rate' in guard ? numberOf(guard.max_error_rate) : usualGuard.max_error_rate,
      max_ttft_ratio: numberOf(guard.max_ttft_ratio),
      min_token_rate_ratio: numberOf(guard.min_token_rate_ratio),
      min_requests: numberOf(guard.min_requests) ?? usualGuard.min_requests,
    },
  };
}

/** Whether a step can be ended by hand: one of a canary, or the watch of a blue-green roll-out. */
export function isPromotable(policy: RolloutPolicy, revision: { status: string; step: number }): boolean {
  if (revision.status !== 'rolling-out') return false;
  if (policy.kind === 'canary') return revision.step < policy.steps.length;
  return policy.kind === 'blue-green' && revision.step === 1;
}

/** Returns the steps of a canary from lines such as `10% 5m`; null if a line is none, or there is none. */
export function stepsOfLines(text: string): CanaryStep[] | null {
  const steps: CanaryStep[] = [];
  for (const line of text.split('\n').map((each) => each.trim())) {
    if (line === '') continue;
    const match = /^(\d+(?:\.\d+)?)\s*%?(?:\s+(.+))?$/.exec(line);
    const hold = match?.[2] === undefined ? null : secondsOf(match[2]);
    if (match === null || Number(match[1]) > 100 || (match[2] !== undefined && hold === null)) return null;
    steps.push({ weight: Number(match[1]), hold_s: hold });
  }
  return steps.length > 0 ? steps : null;
}

export function linesOfSteps(steps: readonly CanaryStep[]): string {
  return steps
    .map(({ weight, hold_s: hold }) => `${weight}%${hold === null ? '' : ` ${secondsText(Math.round(hold))}`}`)
    .join('\n');
}

/** What a dialog has of a policy, as text. */
export interface PolicyDraft {
  kind: RolloutKind;
  surge: string;
  unavailable: string;
  steps: string;
  watch: string;
  hasGuard: boolean;
  errorPercent: string;
  firstByteRatio: string;
  tokenRatio: string;
  requests: string;
}
export type PolicyField = Exclude<keyof PolicyDraft, 'kind' | 'hasGuard'>;

const policyFields = [
  'surge',
  'unavailable',
  'steps',
  'watch',
  'errorPercent',
  'firstByteRatio',
  'tokenRatio',
  'requests',
] as const;

/** Reads the draft of a policy from its JSON; null for an empty text. What cannot be read is as usual. */
export function policyDraftFrom(text: string): PolicyDraft | null {
  if (text === '') return null;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    value = null;
  }
  const read = objectOf(value);
  const usual = policyDraftOf(policyOf({}));
  for (const name of policyFields) {
    const each = read[name];
    if (typeof each === 'string') usual[name] = each;
  }
  const kind = rolloutKinds.find((each) => each === read.kind) ?? usual.kind;
  return { ...usual, kind, hasGuard: read.hasGuard !== false };
}

const textOf = (value: number | null) => (value === null ? '' : String(value));

export function policyDraftOf(policy: RolloutPolicy): PolicyDraft {
  const { kind, steps, watch_s: watch, guard } = policy;
  const rate = (guard ?? usualGuard).max_error_rate;
  return {
    kind,
    surge: textOf(policy.max_surge),
    unavailable: textOf(policy.max_unavailable),
    steps: linesOfSteps(steps),
    watch: secondsText(Math.round(watch)),
    hasGuard: guard !== null,
    errorPercent: textOf(rate === null ? null : Math.round(rate * 1e6) / 1e4),
    firstByteRatio: textOf((guard ?? usualGuard).max_ttft_ratio),
    tokenRatio: textOf((guard ?? usualGuard).min_token_rate_ratio),
    requests: textOf((guard ?? usualGuard).min_requests),
  };
}

/** Returns a bound; null for none, and undefined for what is no number above zero. */
function boundOf(text: string): number | null | undefined {
  if (text.trim() === '') return null;
  const value = Number(text);
  return Number.isFinite(value) && value > 0 ? value : undefined;
}

/** Returns a number of things; null for what is none. */
const countOf = (text: string) => (/^\s*\d{1,9}\s*$/.test(text) ? Number(text) : null);

/** Returns the change of a policy that a draft says, or which of its fields cannot be read. */
export function policyChangeOf(draft: PolicyDraft): { change: PolicyChange; wrong: PolicyField[] } {
  const wrong: PolicyField[] = [];
  const change: PolicyChange = { kind: draft.kind };
  if (draft.kind === 'rolling') {
    const [surge, unavailable] = [countOf(draft.surge), countOf(draft.unavailable)];
    if (surge === null) wrong.push('surge');
    else change.max_surge = surge;
    if (unavailable === null) wrong.push('unavailable');
    else change.max_unavailable = unavailable;
  }
  if (draft.kind === 'canary') {
    const steps = stepsOfLines(draft.steps);
    if (steps === null) wrong.push('steps');
    else change.steps = steps;
  }
  if (draft.kind === 'blue-green') {
    const watch = secondsOf(draft.watch);
    if (watch === null) wrong.push('watch');
    else change.watch_s = watch;
  }
  if (!draft.hasGuard) return { change: { ...change, guard: null }, wrong };
  const bound = (field: PolicyField): number | null => {
    const value = boundOf(draft[field]);
    if (value === undefined) wrong.push(field);
    return value ?? null;
  };
  const percent = bound('errorPercent');
  if (percent !== null && percent > 100) wrong.push('errorPercent');
  const requests = countOf(draft.requests);
  if (requests === null) wrong.push('requests');
  const guard: Guard = {
    max_error_rate: percent === null ? null : percent / 100,
    max_ttft_ratio: bound('firstByteRatio'),
    min_token_rate_ratio: bound('tokenRatio'),
    min_requests: requests ?? usualGuard.min_requests,
  };
  return { change: { ...change, guard }, wrong };
}
