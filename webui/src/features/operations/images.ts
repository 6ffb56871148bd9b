/** Returns the reference of an image, with its registry where it has one. */
export function referenceOf(image: { registry?: string | null; name?: string | null; tag?: string | null }): string {
  const name = [image.registry, image.name].filter(Boolean).join('/');
  return image.tag ? `${name}:${image.tag}` : name;
}

type Limit = { key?: string | null; min?: string | null; max?: string | null } | null;

/** Returns the limits of an image as `cpu 1-8, mem 64m-`; those that say nothing are left out. */
export function limitText(limits: readonly Limit[] | null | undefined): string {
  const says = (amount: string | null | undefined) => (amount && amount !== '0' ? amount : '');
  return (limits ?? [])
    .filter((limit): limit is NonNullable<Limit> => limit !== null && says(limit.min) + says(limit.max) !== '')
    .map((limit) => `${limit.key} ${says(limit.min)}-${says(limit.max)}`)
    .join(', ');
}
