import { environOf } from '../../api/environ';
import { linesOf } from '../../api/forms/lines';
import { pluginOptionsOf } from '../../api/forms/pluginOptions';
import type { SessionRequest } from '../../api/forms/reproduce';
import type { components } from '../../api/generated/rest';
import type { Problem } from '../../api/problems';
import type { Draft, TextField } from './draft';

export type Explanation = components['schemas']['Explanation'];
export type CreateBody = components['schemas']['CreateSessionBody'];

/** Returns the indices of the array that a draft asks for; empty if it asks for sessions of their own. */
export const arrayOf = (draft: Draft): string => (draft.type === 'batch' ? draft.array.trim() : '');

const indexPattern = /^\d+(-\d+(:[1-9]\d*)?)?(,\d+(-\d+(:[1-9]\d*)?)?)*(%[1-9]\d*)?$/;

/** Whether a text has the form of the indices of an array; the manager judges their number. */
export const isIndices = (text: string): boolean => indexPattern.test(text.replaceAll(' ', ''));

const wordsOf = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

/** Returns the fields of a draft that no request can be made of. */
export function faultsOf(draft: Draft): TextField[] {
  const faults: TextField[] = [];
  if (environOf(draft.env) === null) faults.push('env');
  if (draft.priority.trim() !== '' && !/^\d{1,3}$/.test(draft.priority.trim())) faults.push('priority');
  if (wordsOf(draft.preopen).some((word) => !/^\d{1,5}$/.test(word))) faults.push('preopen');
  if (pluginOptionsOf(draft.plugins) === null) faults.push('plugins');
  return faults;
}

/** Returns the mounts of a draft that are elsewhere than at their usual places, with these places. */
const pathsOf = (draft: Draft): Record<string, string> =>
  Object.fromEntries(
    Object.entries(draft.paths).filter(([mount, path]) => path.trim() !== '' && draft.mounts.includes(mount)),
  );

/** Returns what a draft says beyond amounts, as the body, the command and the program need it. */
function optionsOf(draft: Draft) {
  const isBatch = draft.type === 'batch';
  const resourceOptions = {
    ...(draft.shmem.trim() && { shmem: draft.shmem.trim() }),
    ...(draft.keep && { preemptible: 'false' }),
    ...(draft.restartable && isBatch && { restartable: 'true' }),
  };
  return {
    environ: environOf(draft.env) ?? {},
    paths: pathsOf(draft),
    readOnly: draft.readOnly.filter((mount) => draft.mounts.includes(mount)),
    resourceOptions: resourceOptions as Record<string, string>,
    deviceRequests: linesOf(draft.devices),
    variants: linesOf(draft.variants),
    claim: draft.claim.trim(),
    tag: draft.tag.trim(),
    timeout: isBatch ? draft.timeout.trim() : '',
    startsAt: draft.starts.trim(),
    dependencies: wordsOf(draft.depends),
    priority: draft.priority.trim(),
    bootstrap: draft.bootstrap.trim() === '' ? '' : draft.bootstrap,
    ports: wordsOf(draft.preopen).map(Number),
    architecture: draft.architecture.trim(),
    runtimeClass: draft.runtime.trim(),
    owner: draft.owner.trim(),
    agents: wordsOf(draft.agents),
    pluginOptions: pluginOptionsOf(draft.plugins) ?? {},
    domain: draft.domain.trim(),
  };
}

/** Leaves out what is empty: texts, lists and objects. */
function withoutEmpty(values: Record<string, unknown>): Record<string, unknown> {
  const isThere = (value: unknown) =>
    typeof value === 'object' && value !== null ? Object.keys(value).length > 0 : value !== '';
  return Object.fromEntries(Object.entries(values).filter(([, value]) => isThere(value)));
}

/** Returns the body of a creation; null while the draft lacks what every request needs, or has a fault. */
export function bodyOf(draft: Draft): CreateBody | null {
  if (draft.image === '' || (draft.type === 'batch' && draft.command.trim() === '')) return null;
  if (faultsOf(draft).length > 0) return null;
  const resources = Object.fromEntries(
    Object.entries(draft.amounts).filter(([, amount]) => Number.parseFloat(amount) > 0),
  );
  const options = optionsOf(draft);
  return {
    image: draft.image,
    type: draft.type,
    clusterSize: draft.size,
    clusterMode: draft.mode,
    enqueueOnly: true,
    reuseIfExists: false,
    ...withoutEmpty({
      name: draft.name,
      startupCommand: draft.type === 'batch' ? draft.command : '',
      group: draft.project,
      domain: options.domain,
      tag: options.tag,
      batchTimeout: options.timeout,
      starts_at: options.startsAt,
      dependencies: options.dependencies,
      priority: options.priority === '' ? '' : Number(options.priority),
      bootstrap_script: options.bootstrap,
      architecture: options.architecture,
      runtimeClass: options.runtimeClass,
      owner_access_key: options.owner,
    }),
    config: {
      resources,
      ...withoutEmpty({
        scalingGroup: draft.group,
        mounts: draft.mounts,
        mount_map: options.paths,
        mount_options: Object.fromEntries(options.readOnly.map((mount) => [mount, { permission: 'ro' }])),
        environ: options.environ,
        resource_opts: options.resourceOptions,
        device_requests: options.deviceRequests,
        variant_requirements: options.variants,
        claim: options.claim,
        preopen_ports: options.ports,
        agentList: options.agents,
        plugin_options: options.pluginOptions,
      }),
    },
  } as CreateBody;
}

/** The names by which the manager refuses what a field says. */
const refusedNames: Partial<Record<TextField | 'mounts', readonly string[]>> = {
  name: ['name'],
  command: ['startupCommand'],
  env: ['config.environ'],
  devices: ['config.device_requests'],
  variants: ['config.variant_requirements'],
  shmem: ['config.resource_opts'],
  claim: ['config.claim'],
  tag: ['tag'],
  timeout: ['batchTimeout', 'batch_timeout'],
  starts: ['starts_at'],
  depends: ['dependencies'],
  priority: ['priority'],
  bootstrap: ['bootstrap_script'],
  preopen: ['config.preopen_ports'],
  architecture: ['architecture'],
  runtime: ['runtimeClass', 'runtime_class'],
  owner: ['owner_access_key'],
  agents: ['config.agentList'],
  plugins: ['config.plugin_options'],
  domain: ['domain'],
  mounts: ['config.mounts', 'config.mount_map', 'config.mount_options'],
};

/** Returns what a refusal says about each field of the form; the whole sentence if it is about a single one. */
export function refusalsOf({
  fields,
  detail,
}: Pick<Problem, 'fields' | 'detail'>): Partial<Record<TextField | 'mounts', string>> {
  const entries = Object.entries(fields).map(([name, text]) => [name.replace(/^session\./, ''), text] as const);
  const isAbout = (name: string, refused: string) => name === refused || /^[.[]/.test(name.slice(refused.length));
  return Object.fromEntries(
    Object.entries(refusedNames).flatMap(([field, names]) => {
      const entry = entries.find(([name]) =>
        names.some((refused) => name.startsWith(refused) && isAbout(name, refused)),
      );
      return entry === undefined ? [] : [[field, entries.length === 1 && detail ? detail : entry[1]]];
    }),
  );
}

/** The fields of the rarer options. */
export const rareFields = [
  ...(['variants', 'claim', 'shmem', 'tag', 'timeout', 'starts', 'depends', 'priority', 'bootstrap'] as const),
  ...(['preopen', 'architecture', 'runtime', 'owner', 'agents', 'plugins', 'domain'] as const),
] satisfies TextField[];

/** Returns how many of the rarer options a draft uses. */
export function rareCount(draft: Draft): number {
  const isUsed = (name: TextField) => draft[name].trim() !== '' && (name !== 'timeout' || draft.type === 'batch');
  const flags = Number(draft.keep) + Number(draft.restartable && draft.type === 'batch');
  return rareFields.filter(isUsed).length + flags;
}

/** What the amounts of a preset are, and what it says beyond them. */
export interface Preset {
  name: string;
  resource_slots: Record<string, string>;
  shared_memory: number | null;
  device_requests: readonly string[];
  allocatable: boolean;
}

function sizeText(bytes: number): string {
  if (bytes % 2 ** 30 === 0) return `${bytes / 2 ** 30}g`;
  return bytes % 2 ** 20 === 0 ? `${bytes / 2 ** 20}m` : String(bytes);
}

/** Returns what a preset changes in a draft: it takes the place of what the draft said of these. */
export function changesOf(preset: Preset): Pick<Draft, 'amounts' | 'shmem' | 'devices'> {
  return {
    amounts: preset.resource_slots,
    shmem: preset.shared_memory ? sizeText(preset.shared_memory) : '',
    devices: preset.device_requests.join('\n'),
  };
}

/** Returns what a draft asks for, for the command and the program that do the same. */
export function requestOf(draft: Draft): SessionRequest {
  return {
    ...optionsOf(draft),
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
