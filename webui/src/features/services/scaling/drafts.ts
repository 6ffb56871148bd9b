import { secondsOf, secondsText } from '../../../api/amounts';
import type { components } from '../../../api/generated/rest';

export type Scaling = components['schemas']['ScalingReply'];
export type ScalingRule = components['schemas']['ScalingRuleItem'];

export const sources = ['proxy', 'inference-framework', 'kernel', 'prometheus'] as const;
export type Source = (typeof sources)[number];
export const comparators = ['greater-than', 'greater-than-or-equal', 'less-than', 'less-than-or-equal'] as const;
export type Comparator = (typeof comparators)[number];
/** The metrics of app proxies; those of other sources have names of their own. */
export const proxyMetrics = ['load', 'in_flight', 'queued', 'requests_per_s', 'tokens_per_s'] as const;

/** How a service is scaled, as the form has it: texts. */
export interface BoundsDraft {
  min: string;
  max: string;
  idle: string;
  downDelay: string;
  hasTarget: boolean;
  target: string;
  metric: string;
  source: string;
}
export type BoundsField = keyof BoundsDraft;

export interface RuleDraft {
  metric: string;
  source: string;
  comparator: string;
  threshold: string;
  step: string;
  cooldown: string;
  min: string;
  max: string;
}
export type RuleField = keyof RuleDraft;

const textOf = (value: number | null | undefined) => (value === null || value === undefined ? '' : String(value));
const timeOf = (value: number | null | undefined) =>
  value === null || value === undefined ? '' : secondsText(Math.round(value));

export function boundsDraftOf(scaling: Scaling): BoundsDraft {
  const { target } = scaling;
  return {
    min: textOf(scaling.min_replicas),
    max: textOf(scaling.max_replicas),
    idle: timeOf(scaling.idle_s),
    downDelay: timeOf(scaling.down_delay_s),
    hasTarget: target !== null,
    target: textOf(target?.target),
    metric: target?.metric ?? 'load',
    source: target?.metric_source ?? 'proxy',
  };
}

export function ruleDraftOf(rule: ScalingRule | null): RuleDraft {
  return {
    metric: rule?.metric_name ?? 'load',
    source: rule?.metric_source ?? 'proxy',
    comparator: rule?.comparator ?? 'greater-than',
    threshold: rule?.threshold ?? '',
    step: rule === null ? '1' : String(rule.step_size),
    cooldown: rule === null ? '5m' : timeOf(rule.cooldown_seconds),
    min: textOf(rule?.min_replicas),
    max: textOf(rule?.max_replicas),
  };
}

const countOf = (text: string) => (/^\s*\d{1,4}\s*$/.test(text) ? Number(text) : null);
const numberOf = (text: string) => (text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : null);

type Read = Record<string, unknown>;

/** Returns the body of the change that a draft says, or which of its fields cannot be read. What stays is not sent. */
export function boundsChangeOf(draft: BoundsDraft, scaling: Scaling): { body: Read; wrong: BoundsField[] } {
  const before = boundsDraftOf(scaling);
  const wrong: BoundsField[] = [];
  const body: Read = {};
  const read = (field: 'min' | 'max' | 'idle' | 'downDelay', name: string, parse: (text: string) => number | null) => {
    if (draft[field] === before[field]) return;
    const value = parse(draft[field]);
    if (value === null) wrong.push(field);
    else body[name] = value;
  };
  read('min', 'min_replicas', countOf);
  read('max', 'max_replicas', countOf);
  read('idle', 'idle_s', secondsOf);
  read('downDelay', 'down_delay_s', secondsOf);
  if (!draft.hasTarget) {
    if (before.hasTarget) body.target = null;
    return { body, wrong };
  }
  const target = numberOf(draft.target);
  if (target === null || target <= 0) wrong.push('target');
  if (draft.metric.trim() === '') wrong.push('metric');
  const changed = { ...scaling.target, target, metric: draft.metric.trim(), metric_source: draft.source };
  if (JSON.stringify(changed) !== JSON.stringify(scaling.target)) body.target = changed;
  return { body, wrong };
}

/** Returns the body of a rule, or which of its fields cannot be read. */
export function ruleBodyOf(draft: RuleDraft): { body: Read; wrong: RuleField[] } {
  const wrong: RuleField[] = [];
  const needed = (field: RuleField, value: number | null) => {
    if (value === null) wrong.push(field);
    return value;
  };
  const bound = (field: 'min' | 'max') => (draft[field].trim() === '' ? null : needed(field, countOf(draft[field])));
  const step = /^\s*[+-]?\d{1,4}\s*$/.test(draft.step) ? Number(draft.step) : null;
  if (draft.metric.trim() === '') wrong.push('metric');
  const threshold = numberOf(draft.threshold);
  needed('threshold', threshold);
  const body = {
    metric_name: draft.metric.trim(),
    metric_source: draft.source,
    comparator: draft.comparator,
    threshold: draft.threshold.trim(), // as text, so that no digit is lost
    step_size: needed('step', step),
    cooldown_seconds: needed('cooldown', secondsOf(draft.cooldown)),
    min_replicas: bound('min'),
    max_replicas: bound('max'),
  };
  return { body, wrong };
}

/** The field of a form for each name that the manager gives in a problem. */
export const boundsFields: Record<string, BoundsField> = {
  min_replicas: 'min',
  max_replicas: 'max',
  idle_s: 'idle',
  down_delay_s: 'downDelay',
  target: 'target',
  metric_name: 'metric',
  metric: 'metric',
  metric_source: 'source',
};
export const ruleFields: Record<string, RuleField> = {
  metric_name: 'metric',
  metric_source: 'source',
  comparator: 'comparator',
  threshold: 'threshold',
  step_size: 'step',
  cooldown_seconds: 'cooldown',
  min_replicas: 'min',
  max_replicas: 'max',
};
