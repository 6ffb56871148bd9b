import type { Tone } from '../../components/StatusBadge';

/** Returns how a reason looks: time helps, somebody must act, or waiting does not help. */
export function toneOfRemedy(remedy: string | null | undefined): Tone {
  if (remedy === 'time') return 'busy';
  if (remedy === 'others') return 'wait';
  return remedy === 'change' ? 'bad' : 'good';
}

/** Returns a share as a percentage. */
export function percent(share: number, language: string): string {
  return new Intl.NumberFormat(language, { style: 'percent', maximumFractionDigits: 1 }).format(share);
}

/** Returns the numbers of pages of a list. */
export function pagesOf(total: number, size: number): number {
  return Math.max(1, Math.ceil(total / size));
}
