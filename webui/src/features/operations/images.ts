/** Returns the reference of an image, with its registry where it has one. */
export function referenceOf(image: { registry?: string | null; name?: string | null; tag?: string | null }): string {
  const name = [image.registry, image.name].filter(Boolean).join('/');
  return image.tag ? `${name}:${image.tag}` : name;
}

type Limit = { key?: string | null; min?: string | null; max?: string | null } | null;

/**
 * Returns the limits of an image as `cpu 1–8, mem ≥ 64 MiB`; those that say nothing are left out.
 *
 * `format` returns the text of an amount of a slot.
 */
export function limitText(
  limits: readonly Limit[] | null | undefined,
  format: (slot: string, amount: string) => string = (_, amount) => amount,
): string {
  const isBound = (amount: string | null | undefined) => Boolean(amount) && amount !== '0' && amount !== 'Infinity';
  return (limits ?? [])
    .flatMap((limit) => {
      if (limit === null) return [];
      const slot = limit.key ?? '';
      const [min, max] = [limit.min, limit.max].map((amount) => (isBound(amount) ? format(slot, amount ?? '') : ''));
      if (min && max) return [`${slot} ${min}–${max}`];
      return min || max ? [`${slot} ${min ? `≥ ${min}` : `≤ ${max}`}`] : [];
    })
    .join(', ');
}
