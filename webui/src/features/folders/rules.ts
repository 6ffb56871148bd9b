/** Returns the parts of a path below a folder; hostile parts such as `..` are left out. */
export function partsOf(path: string): string[] {
  return path.split('/').filter((part) => part !== '' && part !== '.' && part !== '..');
}

export function joinPath(...paths: string[]): string {
  return paths.flatMap(partsOf).join('/');
}

/** Returns what is wrong with the name of a new file or directory; null if nothing is. */
export function nameFault(name: string): 'empty' | 'slash' | 'dots' | 'long' | null {
  if (name.trim() === '') return 'empty';
  if (name.includes('/') || name.includes('\0')) return 'slash';
  if (name === '.' || name === '..') return 'dots';
  return new TextEncoder().encode(name).length > 255 ? 'long' : null;
}

export type Permission = 'ro' | 'rw' | 'wd';

/** Returns a permission as it is shown: `rw` and `wd` do not differ. */
export function permissionOf(text: string): 'ro' | 'rw' {
  return text === 'ro' ? 'ro' : 'rw';
}

/** Returns the permission that a share does not have. */
export const otherPermission = (text: string): 'ro' | 'rw' => (permissionOf(text) === 'ro' ? 'rw' : 'ro');

/** The folders that the list shows; those of everybody are for superadmins. */
export type FolderView = 'live' | 'trash' | 'all';

/** Returns whether a folder's name contains the words of a search. */
export function matchesName(name: string, search: string): boolean {
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => name.toLowerCase().includes(word));
}

/** Returns the address of a file at a storage proxy. Throws for addresses that are not http or https. */
export function ticketUrl(url: string, token: string, options: Record<string, string> = {}): string {
  const address = new URL(url);
  if (address.protocol !== 'http:' && address.protocol !== 'https:') throw new Error(`no address of a file: ${url}`);
  for (const [name, value] of Object.entries({ token, ...options })) address.searchParams.set(name, value);
  return address.href;
}

/** Returns whether a folder is being made or filled from another one, so that its files are not all there. */
export function isBeingFilled(status: string | undefined): boolean {
  return status === 'performing' || status === 'cloning';
}
