import { parseObject } from '../../api/filters';
import type { components } from '../../api/generated/rest';

type FleetView = components['schemas']['FleetView'];

/** How the free amount of a slot is spread over the agents of a resource group. */
export interface Fragmentation {
  slot: string;
  total: number;
  free: number;
  /** The largest free amount on one agent: what one kernel can have at most. */
  largest: number;
  /** How many agents have so much free, the largest amounts first. */
  steps: { amount: number; agents: number }[];
}

const maxSteps = 12;

/**
 * Returns the fragmentation of each slot in a resource group, those of accelerators first. Agents that take no
 * sessions count for nothing.
 */
export function fragmentationOf(view: FleetView, group: string): Fragmentation[] {
  const column = (name: string) => view.columns.indexOf(name);
  const [status, schedulable, groupAt, available, occupied] = [
    'status',
    'schedulable',
    'resource_group',
    'available',
    'occupied',
  ].map(column) as [number, number, number, number, number];
  const rows = (view.agents as unknown[][]).filter(
    (row) =>
      view.resource_groups[Number(row[groupAt])] === group &&
      view.statuses[Number(row[status])] === 'ALIVE' &&
      row[schedulable] === 1,
  );
  return view.slots
    .flatMap((slot, place) => {
      const frees: number[] = [];
      let total = 0;
      for (const row of rows) {
        const has = (row[available] as (number | null)[])[place];
        if (typeof has !== 'number') continue;
        total += has;
        frees.push(Math.max(0, has - ((row[occupied] as (number | null)[])[place] ?? 0)));
      }
      if (total === 0) return [];
      const counts = new Map<number, number>();
      for (const free of frees) counts.set(free, (counts.get(free) ?? 0) + 1);
      const steps = [...counts]
        .map(([amount, agents]) => ({ amount, agents }))
        .sort((a, b) => b.amount - a.amount)
        .slice(0, maxSteps);
      const free = frees.reduce((sum, each) => sum + each, 0);
      return [{ slot, total, free, largest: Math.max(0, ...frees), steps }];
    })
    .sort((a, b) => Number(isIntrinsic(a.slot)) - Number(isIntrinsic(b.slot)));
}

function isIntrinsic(slot: string): boolean {
  return slot === 'cpu' || slot === 'mem';
}

/** Returns the part of a number in another as whole per cent. */
export function percentOf(part: number, whole: number): number {
  return whole === 0 ? 0 : Math.round((part / whole) * 100);
}

export interface Usage {
  used: number;
  capacity: number;
}

/** Returns how full a storage host is, from the JSON of its `usage`; null where it does not say. */
export function usageOf(text: string | null | undefined): Usage | null {
  try {
    const value = JSON.parse(text ?? '') as Record<string, unknown> | null;
    const capacity = Number(value?.capacity_bytes ?? Number.NaN);
    const used = Number(value?.used_bytes ?? Number.NaN);
    return Number.isFinite(capacity) && Number.isFinite(used) ? { used, capacity } : null;
  } catch {
    return null;
  }
}

const counters = [
  'iops_read',
  'iops_write',
  'io_bytes_read',
  'io_bytes_write',
  'io_usec_read',
  'io_usec_write',
] as const;
export type Counter = (typeof counters)[number];

export const isOfBytes = (counter: Counter) => counter.startsWith('io_bytes');

/** Returns the I/O counters of a storage host from the JSON of its `performance_metric`; those that it lacks are left out. */
export function countersOf(text: string | null | undefined): { name: Counter; value: number }[] {
  const values = parseObject(text);
  return counters.flatMap((name) => (typeof values[name] === 'number' ? [{ name, value: values[name] }] : []));
}

/** Returns a setting's value as it is written in a file. */
export function settingText(value: unknown): string {
  if (value === null || value === undefined) return '–';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Returns whether an operation of the audit log went well: by REST, or as a mutation of GraphQL. */
export function isSuccess(outcome: string): boolean {
  return outcome === 'ok' || outcome === 'success';
}
