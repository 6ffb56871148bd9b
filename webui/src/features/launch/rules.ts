import type { components } from '../../api/generated/rest';
import type { SessionRequest } from '../../api/reproduce';

export type Explanation = components['schemas']['Explanation'];
export type CreateBody = components['schemas']['CreateSessionBody'];

/** What a person wants, as it is in the address of the page; amounts are texts of the command line. */
export interface Draft {
  image: string;
  name: string;
  type: 'interactive' | 'batch';
  command: string;
  /** Indices such as `1-100%4`, which make a batch session an array of them; empty for one session. */
  array: string;
  project: string;
  group: string;
  amounts: Record<string, string>;
  size: number;
  mode: 'single-node' | 'multi-node';
  count: number;
  mounts: string[];
}

export const emptyDraft: Draft = {
  image: '',
  name: '',
  type: 'interactive',
  command: '',
  array: '',
  project: '',
  group: '',
  amounts: {},
  size: 1,
  mode: 'single-node',
  count: 1,
  mounts: [],
};

/** The search parameters of the page; what has its default is absent. */
export interface LaunchSearch {
  image?: string;
  name?: string;
  type?: string;
  command?: string;
  array?: string;
  project?: string;
  group?: string;
  r?: string;
  size?: number;
  mode?: string;
  count?: number;
  mounts?: string;
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : typeof value === 'number' ? String(value) : '';
}

function countOf(value: unknown, largest: number): number {
  const count = Math.floor(Number(value));
  return Number.isFinite(count) ? Math.min(Math.max(count, 1), largest) : 1;
}

/** Reads the search parameters; what cannot be read has its default. */
export function draftOf(search: Record<string, unknown>): Draft {
  const amounts: Record<string, string> = {};
  for (const part of textOf(search.r).split(',')) {
    const [slot, amount] = part.split('=');
    if (slot && amount) amounts[slot] = amount;
  }
  return {
    image: textOf(search.image),
    name: textOf(search.name),
    type: search.type === 'batch' ? 'batch' : 'interactive',
    command: textOf(search.command),
    array: textOf(search.array),
    project: textOf(search.project),
    group: textOf(search.group),
    amounts,
    size: countOf(search.size ?? 1, 1024),
    mode: search.mode === 'multi-node' ? 'multi-node' : 'single-node',
    count: countOf(search.count ?? 1, 100),
    mounts: textOf(search.mounts).split(',').filter(Boolean),
  };
}

/** Returns the search parameters of a draft, without those that have their defaults. */
export function searchOf(draft: Draft): LaunchSearch {
  const r = Object.entries(draft.amounts)
    .filter(([, amount]) => amount !== '')
    .map(([slot, amount]) => `${slot}=${amount}`)
    .join(',');
  return {
    ...(draft.image && { image: draft.image }),
    ...(draft.name && { name: draft.name }),
    ...(draft.type === 'batch' && { type: draft.type }),
    ...(draft.command && { command: draft.command }),
    ...(draft.array && { array: draft.array }),
    ...(draft.project && { project: draft.project }),
    ...(draft.group && { group: draft.group }),
    ...(r && { r }),
    ...(draft.size > 1 && { size: draft.size }),
    ...(draft.mode === 'multi-node' && { mode: draft.mode }),
    ...(draft.count > 1 && { count: draft.count }),
    ...(draft.mounts.length > 0 && { mounts: draft.mounts.join(',') }),
  };
}

/** Returns the indices of the array that a draft asks for; empty if it asks for sessions of their own. */
export const arrayOf = (draft: Draft): string => (draft.type === 'batch' ? draft.array.trim() : '');

const indexPattern = /^\d+(-\d+(:[1-9]\d*)?)?(,\d+(-\d+(:[1-9]\d*)?)?)*(%[1-9]\d*)?$/;

/** Whether a text has the form of the indices of an array; the manager judges their number. */
export const isIndices = (text: string): boolean => indexPattern.test(text.replaceAll(' ', ''));

/** Returns the body of a creation; null while the draft lacks what every request needs. */
export function bodyOf(draft: Draft): CreateBody | null {
  if (draft.image === '' || (draft.type === 'batch' && draft.command.trim() === '')) return null;
  const resources = Object.fromEntries(
    Object.entries(draft.amounts).filter(([, amount]) => Number.parseFloat(amount) > 0),
  );
  return {
    image: draft.image,
    ...(draft.name && { name: draft.name }),
    type: draft.type,
    ...(draft.type === 'batch' && { startupCommand: draft.command }),
    ...(draft.project && { group: draft.project }),
    clusterSize: draft.size,
    clusterMode: draft.mode,
    enqueueOnly: true,
    reuseIfExists: false,
    config: {
      resources,
      ...(draft.group && { scalingGroup: draft.group }),
      ...(draft.mounts.length > 0 && { mounts: draft.mounts }),
    },
  } as CreateBody;
}

/** Returns what a draft asks for, for the command and the program that do the same. */
export function requestOf(draft: Draft): SessionRequest {
  return {
    image: draft.image,
    name: draft.name,
    type: draft.type,
    command: draft.command,
    array: arrayOf(draft),
    amounts: Object.entries(draft.amounts).filter(([, amount]) => Number.parseFloat(amount) > 0),
    clusterSize: draft.size,
    clusterMode: draft.mode,
    project: draft.project,
    resourceGroup: draft.group,
    mounts: draft.mounts,
  };
}

const suffixes: Record<string, number> = { k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 };

/** Returns an amount as a number; sizes have the suffixes of the command line. NaN for what is no amount. */
export function amountOf(text: string): number {
  const match = /^([0-9]+(?:\.[0-9]+)?)([kmgt])?$/i.exec(text.trim());
  if (match === null) return Number.NaN;
  return Number(match[1]) * (suffixes[match[2]?.toLowerCase() ?? ''] ?? 1);
}

/** What bounds a quantity: the rest of the person's limits, of the resource group, and of the best single agent. */
export interface Limits {
  policy: number;
  group: number;
  agent: number;
}

/** Returns which of the limits an amount of each of `kernels` kernels exceeds, the strictest first. */
export function exceeded(amount: number, kernels: number, together: boolean, limits: Limits): (keyof Limits)[] {
  const total = amount * kernels;
  const onOneAgent = together ? total : amount;
  const names: (keyof Limits)[] = [];
  if (onOneAgent > limits.agent) names.push('agent');
  if (total > limits.group) names.push('group');
  if (total > limits.policy) names.push('policy');
  return names;
}

/** Returns the largest amount of one kernel that exceeds no limit. */
export function largest(kernels: number, together: boolean, limits: Limits): number {
  const least = Math.min(limits.policy / kernels, limits.group / kernels, limits.agent / (together ? kernels : 1));
  return Math.max(0, least);
}

export type VerdictTone = 'good' | 'busy' | 'wait' | 'bad';

/** Returns how a verdict looks: three kinds of waits are never one grey word. */
export function verdictTone(explanation: Pick<Explanation, 'verdict' | 'remedy'>): VerdictTone {
  if (explanation.verdict === 'now') return 'good';
  if (explanation.verdict === 'never') return 'bad';
  return explanation.remedy === 'time' ? 'busy' : 'wait';
}

const order: Record<string, number> = { now: 0, waits: 1, never: 2 };

/** Sorts presets: those that start now, those that wait, those that never start; the others by name at the end. */
export function sortByVerdict<T extends { name: string; verdict: string | undefined }>(presets: readonly T[]): T[] {
  return [...presets].sort(
    (a, b) => (order[a.verdict ?? ''] ?? 3) - (order[b.verdict ?? ''] ?? 3) || a.name.localeCompare(b.name),
  );
}

/** Sorts presets: those with enough free resources first, each kind by name. */
export function sortByRoom<T extends { name: string; allocatable: boolean }>(presets: readonly T[]): T[] {
  return [...presets].sort(
    (a, b) =>
      Number(b.allocatable) - Number(a.allocatable) || a.name.localeCompare(b.name, undefined, { numeric: true }),
  );
}
