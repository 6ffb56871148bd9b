/** Returns the path below which the console is served, from a `<base href>` that may be unset: it begins and ends with a slash. */
export function prefixOf(base: string | null, origin: string): string {
  if (base === null || base === '' || base.startsWith('__')) return '/';
  const path = new URL('.', new URL(base, origin)).pathname;
  return path.endsWith('/') ? path : `${path}/`;
}

export const prefix = prefixOf(document.querySelector('base')?.getAttribute('href') ?? null, window.location.origin);
