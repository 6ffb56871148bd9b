import { secondsOf, slotsOfLines } from '../../api/amounts';
import { linesOf } from '../../api/forms/lines';
import type { components } from '../../api/generated/rest';
import type { Tone } from '../../components/StatusBadge';

export type Claim = components['schemas']['ClaimReply'];
export type NewClaim = components['schemas']['CreateClaimBody'];

const tones: Record<string, Tone> = { UNALLOCATED: 'idle', ALLOCATING: 'busy', IN_USE: 'good', IDLE: 'wait' };

export const toneOf = ({ status, problem }: Pick<Claim, 'status' | 'problem'>): Tone =>
  problem === '' ? (tones[status] ?? 'idle') : 'bad';

/** Returns the ids of the devices that a claim holds. */
export function devicesOf({ devices }: Pick<Claim, 'devices'>): string[] {
  return [...new Set(Object.values(devices).flatMap((ofSlot) => Object.keys(ofSlot)))].sort();
}

/** Returns whether a claim holds devices that no session uses, so that they can be returned. */
export const isReleasable = ({ status }: Pick<Claim, 'status'>): boolean => status === 'IDLE';

export interface Draft {
  name: string;
  resources: string;
  requests: string;
  idleTimeout: string;
  project: string;
  group: string;
}

export type Fault = 'name' | 'resources' | 'requests' | 'idleTimeout';

const coresAndMemory = ['cpu', 'mem'];
const maxRequests = 8;

/** Returns the fields of a draft that cannot be sent. */
export function faultsOf(draft: Draft): ReadonlySet<Fault> {
  const faults = new Set<Fault>();
  if (!/^[A-Za-z0-9_.-]{1,64}$/.test(draft.name.trim())) faults.add('name');
  const slots = slotsOfLines(draft.resources);
  const names = slots === null ? [] : Object.keys(JSON.parse(slots));
  const requests = linesOf(draft.requests);
  // Requests have amounts of their own, and cores and memory are those of each session.
  const isWithout = names.length === 0 && requests.length === 0;
  if (slots === null || isWithout || names.some((name) => coresAndMemory.includes(name))) faults.add('resources');
  if (requests.length > maxRequests) faults.add('requests');
  if (draft.idleTimeout.trim() !== '' && secondsOf(draft.idleTimeout) === null) faults.add('idleTimeout');
  return faults;
}

/** Returns the request of a new claim; what is empty is left to the server. */
export function newClaimOf(draft: Draft, domain: string): NewClaim {
  const requests = linesOf(draft.requests);
  const resources = JSON.parse(slotsOfLines(draft.resources) ?? '{}') as Record<string, string>;
  return {
    name: draft.name.trim(),
    resources,
    ...(requests.length === 0 ? {} : { device_requests: requests }),
    ...(draft.idleTimeout.trim() === '' ? {} : { idle_timeout: secondsOf(draft.idleTimeout) }),
    ...(domain === '' ? {} : { domain }),
    ...(draft.project === '' ? {} : { group: draft.project }),
    ...(draft.group === '' ? {} : { scaling_group: draft.group }),
  };
}

/** Returns the devices that others than cores and memory are; what a claim may hold. */
export const acceleratorsOf = (slots: readonly string[]): string[] =>
  slots.filter((name) => !coresAndMemory.includes(name)).sort();
