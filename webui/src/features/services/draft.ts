/** The fields that are texts as a person types them; empty where a request does not say it. */
const textFields = [
  ...(['name', 'model', 'definition', 'image', 'command', 'project', 'group', 'claim', 'port', 'version'] as const),
  ...(['modelName', 'mount', 'architecture', 'tag', 'owner'] as const),
  'devices', // a device request on each line, the preferred first
  'variants', // a property of devices on each line
  'policy', // the draft of a roll-out policy as JSON
] as const;
type TextField = (typeof textFields)[number];

/** The field that often has secrets, so that it is in no address: browsers and servers keep those. */
export interface Unlisted extends Record<string, string> {
  env: string;
}
export const noUnlisted: Unlisted = { env: '' };

/** The service that a person wants; all but the unlisted field is in the address. Amounts are texts of the command line. */
export interface ServiceDraft extends Record<TextField, string> {
  env: string;
  variant: string;
  amounts: Record<string, string>;
  replicas: number;
  size: number;
  mode: 'single-node' | 'multi-node';
  isPublic: boolean;
}

/** The search parameters of the form; what has its default is absent. */
export interface ServiceSearch extends Partial<Record<TextField, string>> {
  variant?: string;
  r?: string;
  replicas?: number;
  size?: number;
  mode?: string;
  public?: boolean;
}

export const customVariant = 'custom';

/** Replicas, and kernels of one, that a request may name; the installation may allow fewer. */
export const mostReplicas = 1024;

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : typeof value === 'number' ? String(value) : '';
}

function countOf(value: unknown, least: number): number {
  const count = Math.floor(Number(value ?? 1));
  return Number.isFinite(count) ? Math.min(Math.max(count, least), mostReplicas) : 1;
}

/** Reads the search parameters; what cannot be read has its default, and the unlisted field is not read from there. */
export function serviceDraftOf(search: Record<string, unknown>, unlisted = noUnlisted): ServiceDraft {
  const amounts = new Map<string, string>();
  for (const part of textOf(search.r).split(',')) {
    const [slot, amount] = part.split('=');
    if (slot && amount) amounts.set(slot, amount);
  }
  return {
    ...(Object.fromEntries(textFields.map((name) => [name, textOf(search[name])])) as Record<TextField, string>),
    env: unlisted.env,
    variant: textOf(search.variant) || customVariant,
    amounts: Object.fromEntries(amounts),
    replicas: countOf(search.replicas, 0),
    size: countOf(search.size, 1),
    mode: search.mode === 'multi-node' ? 'multi-node' : 'single-node',
    isPublic: search.public === true || search.public === 'true',
  };
}

/** Returns the search parameters of a draft, without its unlisted field and those that have their defaults. */
export function serviceSearchOf(draft: ServiceDraft): ServiceSearch {
  const r = Object.entries(draft.amounts)
    .filter(([, amount]) => amount !== '')
    .map(([slot, amount]) => `${slot}=${amount}`)
    .join(',');
  return {
    ...Object.fromEntries(textFields.filter((name) => draft[name] !== '').map((name) => [name, draft[name]])),
    ...(draft.variant !== customVariant && { variant: draft.variant }),
    ...(r && { r }),
    ...(draft.replicas !== 1 && { replicas: draft.replicas }),
    ...(draft.size > 1 && { size: draft.size }),
    ...(draft.mode === 'multi-node' && { mode: draft.mode }),
    ...(draft.isPublic && { public: true }),
  };
}
