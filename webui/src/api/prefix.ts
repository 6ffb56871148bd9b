/** Returns the path below which the console is served, from what its page says, which may be unset: it begins and ends with a slash. */
export function prefixOf(text: string | null, origin: string): string {
  if (text === null || text === '' || text.startsWith('__')) return '/';
  const path = new URL('.', new URL(text, origin)).pathname;
  return path.endsWith('/') ? path : `${path}/`;
}

export const prefix = prefixOf(
  document.querySelector('meta[name="path-prefix"]')?.getAttribute('content') ?? null,
  window.location.origin,
);
