import type { components } from '../../api/generated/rest';

export type UsageBin = components['schemas']['UsageBin'];
export const measures = ['num_sessions', 'cpu_allocated', 'mem_allocated', 'gpu_allocated', 'disk_used'] as const;
export type Measure = (typeof measures)[number];

export const isOfBytes = (measure: Measure) => measure === 'mem_allocated' || measure === 'disk_used';

/** The measures that had a value above zero, with the mean and the maximum of each. */
export function usedMeasures(bins: readonly UsageBin[]): { name: Measure; mean: number; most: number }[] {
  return measures
    .map((name) => {
      const values = bins.map((bin) => bin[name].value);
      return {
        name,
        mean: values.reduce((sum, value) => sum + value, 0) / values.length,
        most: Math.max(0, ...values),
      };
    })
    .filter(({ most }) => most > 0);
}

/** A CSV of all measures (RFC 4180), in which a line is a quarter of an hour that begins at `time`. */
export function csvOf(bins: readonly UsageBin[]): string {
  const lines = bins.map((bin) => [
    new Date(bin.date * 1000).toISOString(),
    ...measures.map((name) => String(bin[name].value)),
  ]);
  return [['time', ...measures], ...lines].map((line) => `${line.join(',')}\r\n`).join('');
}
