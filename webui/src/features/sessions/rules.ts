import { parseObject } from '../../api/filters';
import type { SessionRequest } from '../../api/forms/reproduce';
import { withoutEscapes } from '../../api/text';
import type { Tone } from '../../components/StatusBadge';

/** The statuses of sessions, as the manager and the command line name them. */
export const waitingStatuses = ['PENDING', 'SCHEDULED', 'PREPARING', 'PULLING', 'PREPARED', 'CREATING'] as const;
export const runningStatuses = ['RUNNING', 'RUNNING_DEGRADED', 'RESTARTING'] as const;
export const endedStatuses = ['TERMINATED', 'ERROR', 'CANCELLED'] as const;

const groups: Record<string, readonly string[]> = {
  live: [...waitingStatuses, ...runningStatuses, 'TERMINATING'],
  waiting: waitingStatuses,
  running: runningStatuses,
  ended: endedStatuses,
  all: [],
};
export const statusGroups = ['live', 'waiting', 'running', 'ended', 'all'] as const;
export type StatusGroup = (typeof statusGroups)[number];

/** Returns the statuses of a group as the manager's argument; null for every status. An unknown group is every one. */
export function statusArgument(group: string): string | null {
  return groups[group]?.join(',') || null;
}

export function isLive(status: string | null | undefined): boolean {
  return !(endedStatuses as readonly string[]).includes(status ?? '');
}

/** Returns whether programs of a session can be reached. */
export function isRunning(status: string | null | undefined): boolean {
  return status === 'RUNNING' || status === 'RUNNING_DEGRADED';
}

const tones: Record<string, Tone> = {
  PENDING: 'wait',
  RUNNING: 'good',
  RUNNING_DEGRADED: 'warn',
  RESTARTING: 'busy',
  TERMINATING: 'busy',
  TERMINATED: 'idle',
  CANCELLED: 'idle',
  ERROR: 'bad',
  SCHEDULED: 'busy',
  PREPARING: 'busy',
  PULLING: 'busy',
  PREPARED: 'busy',
  CREATING: 'busy',
};

/** Returns the tone of a status; one that this console does not know is neutral. */
export function toneOf(status: string | null | undefined): Tone {
  return tones[status ?? ''] ?? 'idle';
}

/** Who or what can end a wait: time, somebody, or nobody. */
export type WaitClass = 'time' | 'act' | 'never';

const waitClasses: Record<string, WaitClass> = {
  'not-yet': 'time',
  'dependency-unfinished': 'time',
  'behind-another': 'time',
  preempting: 'time',
  'quota-exceeded': 'act',
  'insufficient-resource': 'act',
  'claim-in-use': 'act',
  'claim-unavailable': 'act',
  'never-fits': 'never',
  'no-agent': 'never',
  'no-matching-agent': 'never',
  'no-matching-device': 'never',
  'unsupported-resource': 'never',
  'devices-failed': 'never',
  'dependency-failed': 'never',
};

export interface Wait {
  reason: string;
  message: string;
  class: WaitClass;
}

/** Returns why a session waits; null if it does not, or if nobody has said why. */
export function waitOf(session: { status?: string | null; status_data?: string | null }): Wait | null {
  if (session.status !== 'PENDING') return null;
  const scheduler = parseObject(session.status_data).scheduler as Record<string, unknown> | undefined;
  if (!scheduler || typeof scheduler.reason !== 'string') return null;
  return {
    reason: scheduler.reason,
    message: typeof scheduler.message === 'string' ? scheduler.message : '',
    class: waitClasses[scheduler.reason] ?? 'time',
  };
}

/** Returns the message of the error of a session; empty if there is none. */
export function errorOf(statusData: string | null | undefined): string {
  const error = parseObject(statusData).error;
  if (typeof error === 'string') return error;
  if (typeof error !== 'object' || error === null) return '';
  const fields = error as Record<string, unknown>;
  const text = fields.message ?? fields.msg ?? fields.repr ?? fields.detail;
  return typeof text === 'string' ? text : JSON.stringify(error);
}

export interface Stage {
  status: string;
  at: string;
  /** Until the next stage, or until now for the last one of a live session; null for the last one of an ended session. */
  seconds: number | null;
}

/** Returns the stages of a session in the order of time. */
export function stagesOf(history: string | null | undefined, live: boolean, now: Date): Stage[] {
  const entries = Object.entries(parseObject(history))
    .filter((entry): entry is [string, string] => typeof entry[1] === 'string' && !Number.isNaN(Date.parse(entry[1])))
    .map(([status, at], index) => ({ status, at, time: Date.parse(at), index }))
    .sort((a, b) => a.time - b.time || a.index - b.index);
  return entries.map(({ status, at, time }, index) => {
    const next = entries[index + 1];
    const until = next?.time ?? (live ? now.getTime() : null);
    return { status, at, seconds: until === null ? null : Math.max(0, (until - time) / 1000) };
  });
}

export interface Device {
  plugin: string;
  id: string;
  model: string;
  data: string;
}

/** Returns the devices that a container holds. */
export function devicesOf(text: string | null | undefined): Device[] {
  return Object.entries(parseObject(text)).flatMap(([plugin, devices]) =>
    (Array.isArray(devices) ? devices : []).map((device: Record<string, unknown>) => ({
      plugin,
      id: String(device.device_id ?? ''),
      model: String(device.model_name ?? ''),
      data: JSON.stringify(device.data ?? {}),
    })),
  );
}

export interface Measure {
  name: string;
  current: number;
  capacity: number | null;
  unit: string;
}

/** Returns the measured values of a container. */
export function measuresOf(text: string | null | undefined): Measure[] {
  return measuresOfObject(parseObject(text));
}

/** Returns the measured values of an object; what is no value is left out. */
export function measuresOfObject(metrics: Record<string, unknown>): Measure[] {
  return Object.entries(metrics).flatMap(([name, value]) => {
    if (typeof value !== 'object' || value === null) return [];
    const fields = value as Record<string, unknown>;
    const current = Number(fields.current);
    const capacity = Number(fields.capacity);
    if (!Number.isFinite(current)) return [];
    return [
      {
        name,
        current,
        capacity: fields.capacity !== null && Number.isFinite(capacity) && capacity > 0 ? capacity : null,
        unit: String(fields.unit_hint ?? ''),
      },
    ];
  });
}

export interface Service {
  name: string;
  protocol: string;
}

/** Returns where a browser opens an app: at the app proxy, by the token of a started service. */
export function appUrl(proxy: string, token: string, sessionId: string, service: Service): string | null {
  let base: URL;
  try {
    base = new URL(proxy);
  } catch {
    return null;
  }
  if (base.protocol !== 'http:' && base.protocol !== 'https:') return null;
  const path = `/v2/proxy/${encodeURIComponent(token)}/${encodeURIComponent(sessionId)}/add`;
  const search = new URLSearchParams({ app: service.name, protocol: service.protocol, redirect: '/' });
  return `${base.origin}${base.pathname.replace(/\/$/, '')}${path}?${search}`;
}

/** Returns lines of a log without the escape sequences of terminals. */
export function linesOf(log: string): string[] {
  const lines = withoutEscapes(log)
    .split('\n')
    .map((line) => line.slice(line.replace(/\r$/, '').lastIndexOf('\r') + 1).replace(/\r$/, ''));
  if (lines.at(-1) === '') lines.pop();
  return lines;
}

/** Returns the request behind a session, as far as its record tells it. */
export function requestOf(session: {
  image?: string | null;
  name?: string | null;
  type?: string | null;
  startup_command?: string | null;
  requested_slots?: string | null;
  cluster_size?: number | null;
  cluster_mode?: string | null;
  group_name?: string | null;
  scaling_group?: string | null;
  mounts?: readonly (string | null)[] | null;
  claim?: string | null;
  variant_requirements?: readonly (string | null)[] | null;
  device_requests?: readonly (string | null)[] | null;
}): SessionRequest {
  const slots = Object.entries(parseObject(session.requested_slots)).filter(([, amount]) => Number(amount) > 0);
  return {
    image: session.image ?? '',
    name: session.name ?? '',
    type: session.type ?? 'interactive',
    command: session.startup_command ?? '',
    amounts: slots.map(([slot, amount]) => [slot, String(amount)]),
    clusterSize: session.cluster_size ?? 1,
    clusterMode: session.cluster_mode ?? 'single-node',
    project: session.group_name ?? '',
    resourceGroup: session.scaling_group ?? '',
    mounts: (session.mounts ?? []).filter((mount): mount is string => Boolean(mount)),
    claim: session.claim ?? '',
    variants: (session.variant_requirements ?? []).filter((text): text is string => Boolean(text)),
    deviceRequests: (session.device_requests ?? []).filter((text): text is string => Boolean(text)),
  };
}
