/** Returns a limit for reading: zero and less, and what is absent, mean none. */
export function limitOf(value: number | null | undefined): number {
  return value === null || value === undefined || value <= 0 ? Number.POSITIVE_INFINITY : value;
}
