import type { components } from '../../api/generated/rest';

export type ProjectUsage = components['schemas']['GroupUsageReport'];
export type ContainerUsage = components['schemas']['ContainerUsage'];

const dayMs = 86_400_000;
const maxDays = 100;

/** Returns a day as `2026-11-28`, in UTC as reports count. */
export function dayText(at: Date): string {
  return at.toISOString().slice(0, 10);
}

export function monthOf(text: string | undefined, now: Date): string {
  return /^\d{4}-(0[1-9]|1[0-2])$/.test(text ?? '') ? (text as string) : dayText(now).slice(0, 7);
}

/** Returns the first and last day of a month. */
export function daysOfMonth(month: string): { from: string; to: string } {
  const [year = 1970, number = 1] = month.split('-').map(Number);
  return { from: `${month}-01`, to: dayText(new Date(Date.UTC(year, number, 0))) };
}

/** Returns what is wrong with a period: no days, the wrong way round, or longer than a report may be; else null. */
export function faultOf(from: string, to: string): 'malformed' | 'reversed' | 'long' | null {
  const [start, end] = [from, to].map((day) =>
    /^\d{4}-\d{2}-\d{2}$/.test(day) ? Date.parse(`${day}T00:00:00Z`) : Number.NaN,
  );
  if (start === undefined || end === undefined || Number.isNaN(start) || Number.isNaN(end)) return 'malformed';
  if (end < start) return 'reversed';
  return (end - start) / dayMs + 1 > maxDays ? 'long' : null;
}

/** Returns a day or month as the manager takes it: `20261128`, `202611`. */
export function compact(text: string): string {
  return text.replaceAll('-', '');
}

/** Returns how long each slot was held, in hours of one unit of it; memory in GiB hours. Those of zero are left out. */
export function heldHours(seconds: Record<string, string> | undefined): { slot: string; hours: number }[] {
  return Object.entries(seconds ?? {})
    .map(([slot, text]) => ({ slot, hours: Number(text) / 3600 / (slot === 'mem' ? 2 ** 30 : 1) }))
    .filter(({ hours }) => hours > 0);
}

/** Returns a cell of a CSV (RFC 4180). What a spreadsheet would take for a formula is made a text: users name sessions. */
function cell(value: unknown): string {
  const text = String(value ?? '');
  const harmless = typeof value !== 'number' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

const columns = [
  'name',
  'email',
  'group_name',
  'image_name',
  'status',
  'smp',
  'mem_allocated',
  'cpu_used',
  'io_read',
  'io_write',
  'started_at',
  'terminated_at',
] as const;

/** A CSV with a line for each container. */
export function csvOfContainers(containers: readonly ContainerUsage[]): string {
  return [columns, ...containers.map((one) => columns.map((name) => one[name]))]
    .map((line) => `${line.map(cell).join(',')}\r\n`)
    .join('');
}
