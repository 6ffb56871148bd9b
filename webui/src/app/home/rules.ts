/** How much of a slot is used, and how much may be. */
export interface Quota {
  slot: string;
  used: number;
  /** Infinity: no limit. */
  limit: number;
}

function amountOf(value: string | undefined): number {
  return value === undefined || value === 'Infinity' ? Number.POSITIVE_INFINITY : Number(value);
}

/** Returns the tightest limit of each slot: of the keypair, the project and the domain. */
export function quotasOf(using: Record<string, string>, remaining: readonly Record<string, string>[]): Quota[] {
  const slots = new Set([...Object.keys(using), ...remaining.flatMap((part) => Object.keys(part))]);
  return [...slots].map((slot) => {
    const used = Number(using[slot] ?? 0);
    const rest = Math.min(...remaining.map((part) => amountOf(part[slot])));
    return { slot, used, limit: used + Math.max(0, rest) };
  });
}
