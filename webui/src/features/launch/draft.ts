import { scheme } from '../../api/mounts';

/** The fields of a draft that are texts as a person types them; empty where a request does not say it. */
export const textFields = [
  'image',
  'name',
  'command',
  'array', // indices such as `1-100%4`, which make a batch session an array of them
  'project',
  'group',
  'env', // lines such as `A=1`
  'devices', // a device request on each line, the preferred first
  'variants', // a property of devices on each line
  'shmem',
  'claim',
  'tag',
  'timeout',
  'starts',
  'depends', // names or ids of sessions, separated by commas or lines
  'priority',
  'bootstrap',
  'preopen', // ports, separated by commas
  'architecture',
  'runtime',
  'owner',
  'agents', // separated by commas
  'plugins', // lines such as `fpga.image=fft.bit`
  'domain',
] as const;
export type TextField = (typeof textFields)[number];

/** The fields that often have secrets, so that they are in no address: browsers and servers keep those. */
export const unlistedFields = ['env', 'bootstrap'] as const satisfies TextField[];
export type UnlistedField = (typeof unlistedFields)[number];
export const noUnlisted: Record<UnlistedField, string> = { env: '', bootstrap: '' };

const listedFields = textFields.filter((name) => !unlistedFields.some((unlisted) => unlisted === name));

/** What a person wants; all but the unlisted fields is in the address. Amounts are texts of the command line. */
export interface Draft extends Record<TextField, string> {
  type: 'interactive' | 'batch';
  amounts: Record<string, string>;
  size: number;
  mode: 'single-node' | 'multi-node';
  count: number;
  mounts: string[];
  /** Where a mount is seen, if it is elsewhere than at its usual place. */
  paths: Record<string, string>;
  readOnly: string[];
  /** Sessions of larger priority do not end it. */
  keep: boolean;
  /** A batch session starts over after it was ended for another. */
  restartable: boolean;
}

export const emptyDraft: Draft = {
  ...(Object.fromEntries(textFields.map((name) => [name, ''])) as Record<TextField, string>),
  type: 'interactive',
  amounts: {},
  size: 1,
  mode: 'single-node',
  count: 1,
  mounts: [],
  paths: {},
  readOnly: [],
  keep: false,
  restartable: false,
};

/** The search parameters of the page; what has its default is absent. */
export interface LaunchSearch extends Partial<Record<Exclude<TextField, UnlistedField>, string>> {
  type?: string;
  r?: string;
  size?: number;
  mode?: string;
  count?: number;
  /** Mounts, each with its path and `ro` if it has them. */
  mounts?: string;
  keep?: boolean;
  restartable?: boolean;
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : typeof value === 'number' || value === true ? String(value) : '';
}

function countOf(value: unknown, largest: number): number {
  const count = Math.floor(Number(value));
  return Number.isFinite(count) ? Math.min(Math.max(count, 1), largest) : 1;
}

/** Reads mounts such as `data,models:/models:ro`; in a path %2C is a comma. */
function mountsOf(text: string): Pick<Draft, 'mounts' | 'paths' | 'readOnly'> {
  const paths: Record<string, string> = {};
  const readOnly: string[] = [];
  const mounts = text.split(',').flatMap((part) => {
    const prefix = part.startsWith(scheme) ? scheme : '';
    const [folder, path, permission] = part.slice(prefix.length).split(':');
    if (!folder) return [];
    const mount = prefix + folder;
    if (path) paths[mount] = path.replaceAll('%2C', ',').replaceAll('%3A', ':').replaceAll('%25', '%');
    if (permission === 'ro') readOnly.push(mount);
    return [mount];
  });
  return { mounts, paths, readOnly };
}

const mountText = (draft: Draft) => (mount: string) => {
  const path = (draft.paths[mount] ?? '').replaceAll('%', '%25').replaceAll(',', '%2C').replaceAll(':', '%3A');
  if (draft.readOnly.includes(mount)) return `${mount}:${path}:ro`;
  return path === '' ? mount : `${mount}:${path}`;
};

/** Reads the search parameters; what cannot be read has its default, and the unlisted fields are not read from there. */
export function draftOf(search: Record<string, unknown>, unlisted = noUnlisted): Draft {
  const amounts: Record<string, string> = {};
  for (const part of textOf(search.r).split(',')) {
    const [slot, amount] = part.split('=');
    if (slot && amount) amounts[slot] = amount;
  }
  return {
    ...(Object.fromEntries(listedFields.map((name) => [name, textOf(search[name])])) as Record<TextField, string>),
    ...unlisted,
    type: search.type === 'batch' ? 'batch' : 'interactive',
    amounts,
    size: countOf(search.size ?? 1, 1024),
    mode: search.mode === 'multi-node' ? 'multi-node' : 'single-node',
    count: countOf(search.count ?? 1, 100),
    ...mountsOf(textOf(search.mounts)),
    keep: search.keep === true,
    restartable: search.restartable === true,
  };
}

/** Returns the search parameters of a draft, without its unlisted fields and those that have their defaults. */
export function searchOf(draft: Draft): LaunchSearch {
  const r = Object.entries(draft.amounts)
    .filter(([, amount]) => amount !== '')
    .map(([slot, amount]) => `${slot}=${amount}`)
    .join(',');
  return {
    ...Object.fromEntries(listedFields.filter((name) => draft[name] !== '').map((name) => [name, draft[name]])),
    ...(draft.type === 'batch' && { type: draft.type }),
    ...(r && { r }),
    ...(draft.size > 1 && { size: draft.size }),
    ...(draft.mode === 'multi-node' && { mode: draft.mode }),
    ...(draft.count > 1 && { count: draft.count }),
    ...(draft.mounts.length > 0 && { mounts: draft.mounts.map(mountText(draft)).join(',') }),
    ...(draft.keep && { keep: true }),
    ...(draft.restartable && { restartable: true }),
  };
}
