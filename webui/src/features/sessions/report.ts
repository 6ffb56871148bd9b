import type { components } from '../../api/generated/rest';

export type Report = components['schemas']['SessionReport'];
export type ReportedKernel = components['schemas']['ReportedKernel'];
export type ReportedStep = components['schemas']['ReportedStep'];
export type ReportedLine = components['schemas']['ReportedLine'];

/** What the scheduler decided, as it is shown. */
export interface Decision {
  message: string;
  position: string | null;
  agents: string | null;
  holders: string[];
  limits: string[];
  excluded: { reason: string; count: number; agents: string[] }[];
}

const recordOf = (value: unknown): Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
const recordsOf = (value: unknown) => (Array.isArray(value) ? value.map(recordOf) : []);
const textOf = (value: unknown): string =>
  typeof value === 'string' || typeof value === 'number' ? String(value) : '';

/**
 * Reads a decision: the explanation of a session that waits, or what the scheduler noted of one that does not.
 *
 * What is absent is left out: the two have few fields in common.
 */
export function decisionOf(decision: unknown): Decision {
  const fields = recordOf(decision);
  const agents = recordOf(fields.agents);
  return {
    message: textOf(fields.message) || textOf(fields.reason),
    position: textOf(fields.position) || null,
    agents: 'total' in agents ? `${textOf(agents.startable)} / ${textOf(agents.total)}` : null,
    holders: recordsOf(recordOf(fields.holders).visible).map(({ name, id }) => textOf(name) || textOf(id)),
    limits: recordsOf(fields.limits)
      .filter((limit) => limit.is_exceeded === true)
      .map(({ scope, slot, used, requested, limit }) =>
        [scope, slot, `${textOf(used)} + ${textOf(requested)} > ${textOf(limit)}`].map(textOf).join(' '),
      ),
    excluded: recordsOf(agents.excluded).map(({ reason, count, agents: names }) => ({
      reason: textOf(reason),
      count: Number(count) || 0,
      agents: Array.isArray(names) ? names.map(textOf) : [],
    })),
  };
}

const hidden = new Set(['kernelId', 'clusterIdx']);

/** Returns the details of a step as a line. */
export function detailsOf(step: Pick<ReportedStep, 'details'>): string {
  return Object.entries(recordOf(step.details))
    .filter(([name]) => !hidden.has(name))
    .map(([name, value]) => `${name}=${typeof value === 'object' ? JSON.stringify(value) : String(value)}`)
    .join(' ');
}
