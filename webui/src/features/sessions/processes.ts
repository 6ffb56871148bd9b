import type { components } from '../../api/generated/rest';

export type Process = components['schemas']['ProcessRow'];

const firstMetrics = ['cpu_util', 'mem', 'cpu_used'];
const sandboxPrograms = new Set(['bwrap']);

/** Returns whether a process is none of the programs that stand around every workload. */
export function isUsers({ command }: Pick<Process, 'command'>): boolean {
  const program = command.trim().split(/\s+/)[0] ?? '';
  return !sandboxPrograms.has(program.slice(program.lastIndexOf('/') + 1));
}

/** Returns the names of the metrics of processes: use of processors and memory first. */
export function metricNames(processes: readonly Pick<Process, 'metrics'>[]): string[] {
  const names = new Set(processes.flatMap(({ metrics }) => Object.keys(metrics)));
  return [
    ...firstMetrics.filter((name) => names.has(name)),
    ...[...names].filter((name) => !firstMetrics.includes(name)).sort(),
  ];
}
