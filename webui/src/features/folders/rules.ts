import { bytesOf } from '../../api/amounts';
import type { components } from '../../api/generated/rest';

/** Returns the parts of a path below a folder; hostile parts such as `..` are left out. */
export function partsOf(path: string): string[] {
  return path.split('/').filter((part) => part !== '' && part !== '.' && part !== '..');
}

export function joinPath(...paths: string[]): string {
  return paths.flatMap(partsOf).join('/');
}

/** Returns what is wrong with the name of a new file or directory; null if nothing is. */
export function nameFault(name: string): 'empty' | 'slash' | 'dots' | 'long' | null {
  if (name.trim() === '') return 'empty';
  if (name.includes('/') || name.includes('\0')) return 'slash';
  if (name === '.' || name === '..') return 'dots';
  return new TextEncoder().encode(name).length > 255 ? 'long' : null;
}

export const usageModes = ['general', 'data', 'model'] as const;

/** Returns the request of a new folder; what was left as it is by default is not in it. */
export function newFolderOf(draft: {
  name: string;
  project: string;
  host: string;
  usage: string;
  permission: string;
  quota: string;
  isCloneable: boolean;
}): components['schemas']['CreateFolderBody'] {
  const quota = bytesOf(draft.quota);
  return {
    name: draft.name.trim(),
    ...(draft.host === '' ? {} : { host: draft.host }),
    ...(draft.project === '' ? {} : { group: draft.project, permission: permissionOf(draft.permission) }),
    ...(draft.usage === 'data' || draft.usage === 'model' ? { usage_mode: draft.usage } : {}),
    ...(quota === null ? {} : { quota }),
    ...(draft.isCloneable ? { cloneable: true } : {}),
  };
}

/** Returns whether the page of a folder offers to share it; administrators share those of projects as well. */
export function mayShare(folder: { is_owner: boolean; ownership_type: string }, role: string): boolean {
  return folder.is_owner || (folder.ownership_type === 'group' && (role === 'admin' || role === 'superadmin'));
}

export type Permission = 'ro' | 'rw' | 'wd';

/** Returns a permission as it is shown: `rw` and `wd` do not differ. */
export function permissionOf(text: string): 'ro' | 'rw' {
  return text === 'ro' ? 'ro' : 'rw';
}

/** Returns the permission that a share does not have. */
export const otherPermission = (text: string): 'ro' | 'rw' => (permissionOf(text) === 'ro' ? 'rw' : 'ro');

/** The folders that the list shows; those of everybody are for superadmins. */
export type FolderView = 'live' | 'trash' | 'all';

/** Returns whether a folder's name contains the words of a search. */
export function matchesName(name: string, search: string): boolean {
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => name.toLowerCase().includes(word));
}

/** Returns the address of a file at a storage proxy. Throws for addresses that are not http or https. */
export function ticketUrl(url: string, token: string, options: Record<string, string> = {}): string {
  const address = new URL(url);
  if (address.protocol !== 'http:' && address.protocol !== 'https:') throw new Error(`no address of a file: ${url}`);
  for (const [name, value] of Object.entries({ token, ...options })) address.searchParams.set(name, value);
  return address.href;
}

/** Returns whether a folder is being made or filled from another one, so that its files are not all there. */
export function isBeingFilled(status: string | undefined): boolean {
  return status === 'performing' || status === 'cloning';
}

/** What somebody keeps on a storage host, and what they may; a limit of null is none. */
export interface Quota {
  host: string;
  scope: string;
  owner: string;
  usedBytes: number | null;
  limitBytes: number | null;
  /** The limit is kept by the storage itself (`hard`), or where files are uploaded and folders copied (`soft`). */
  enforcement: string;
  /** Why it could not be looked up; empty if it was. */
  problem: string;
}

interface Named {
  id: string | null;
  name: string | null;
}

interface Person {
  uuid: string | null;
  email: string | null;
  groups?: (Named | null)[] | null;
}

/** Returns the scopes whose quotas concern a person: their own, and those of their projects. */
export function scopesOf(user: Person | null | undefined): { scope: string; owner: string }[] {
  if (!user?.uuid) return [];
  const groups = (user.groups ?? []).filter((group) => group !== null);
  return [
    { scope: `user:${user.uuid}`, owner: user.email ?? user.uuid },
    ...groups.map(({ id, name }) => ({ scope: `project:${id}`, owner: name ?? id ?? '' })),
  ];
}

interface QuotaDetails {
  usage_bytes: unknown;
  hard_limit_bytes: unknown;
  enforcement: string | null;
}

export function quotaOf(host: string, scope: string, owner: string, details: QuotaDetails | null | undefined): Quota {
  const numberOf = (value: unknown) => (value === null || value === undefined ? null : Number(value));
  return {
    host,
    scope,
    owner,
    usedBytes: numberOf(details?.usage_bytes),
    limitBytes: numberOf(details?.hard_limit_bytes),
    enforcement: details?.enforcement ?? '',
    problem: '',
  };
}

/** Returns whether nothing more fits into a quota, so that uploads are refused. */
export function isFull({ usedBytes, limitBytes }: Pick<Quota, 'usedBytes' | 'limitBytes'>): boolean {
  return usedBytes !== null && limitBytes !== null && usedBytes >= limitBytes;
}
