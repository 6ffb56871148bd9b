/** An entry below a key of the shared configuration: a value, or a folder of further keys, or both. */
export interface ConfigEntry {
  name: string;
  key: string;
  value: string | null;
  /** How many values lie below it. */
  below: number;
}

function isTree(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function countOf(value: unknown): number {
  return isTree(value) ? Object.values(value).reduce<number>((sum, child) => sum + countOf(child), 0) : 1;
}

/** Returns the entries at a prefix, in order; the value of an inner key is under the empty name in the reply. */
export function entriesOf(prefix: string, tree: unknown): ConfigEntry[] {
  if (!isTree(tree)) return [];
  return Object.entries(tree)
    .map(([name, child]): ConfigEntry => {
      const key = [prefix, name].filter(Boolean).join('/');
      if (!isTree(child)) return { name, key, value: String(child), below: 0 };
      const { '': own, ...others } = child;
      return { name, key, value: own === undefined ? null : String(own), below: countOf(others) };
    })
    .sort((a, b) => a.name.localeCompare(b.name));
}

/** Returns the keys above a key with their last parts, the root left out. */
export function pathOf(key: string): { name: string; key: string }[] {
  const parts = key.split('/').filter(Boolean);
  return parts.map((name, place) => ({ name, key: parts.slice(0, place + 1).join('/') }));
}

const secret = /(password|secret|token|credential|access_key|private_key|api_key)/i;

/** Returns whether the value of a key is covered until somebody wants to see it. */
export function isSecret(key: string): boolean {
  return secret.test(key.slice(key.lastIndexOf('/') + 1));
}
