/** The service that a person wants, as it is in the address of the form; amounts are texts of the command line. */
export interface ServiceDraft {
  name: string;
  model: string;
  definition: string;
  image: string;
  variant: string;
  command: string;
  project: string;
  group: string;
  amounts: Record<string, string>;
  replicas: number;
  isPublic: boolean;
}

/** The search parameters of the form; what has its default is absent. */
export interface ServiceSearch {
  name?: string;
  model?: string;
  definition?: string;
  image?: string;
  variant?: string;
  command?: string;
  project?: string;
  group?: string;
  r?: string;
  replicas?: number;
  public?: boolean;
}

export const customVariant = 'custom';

/** Replicas that a request may name; the installation may allow fewer. */
export const mostReplicas = 1024;

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : typeof value === 'number' ? String(value) : '';
}

function replicasOf(value: unknown): number {
  const count = Math.floor(Number(value ?? 1));
  return Number.isFinite(count) ? Math.min(Math.max(count, 0), mostReplicas) : 1;
}

/** Reads the search parameters; what cannot be read has its default. */
export function serviceDraftOf(search: Record<string, unknown>): ServiceDraft {
  const amounts = new Map<string, string>();
  for (const part of textOf(search.r).split(',')) {
    const [slot, amount] = part.split('=');
    if (slot && amount) amounts.set(slot, amount);
  }
  return {
    name: textOf(search.name),
    model: textOf(search.model),
    definition: textOf(search.definition),
    image: textOf(search.image),
    variant: textOf(search.variant) || customVariant,
    command: textOf(search.command),
    project: textOf(search.project),
    group: textOf(search.group),
    amounts: Object.fromEntries(amounts),
    replicas: replicasOf(search.replicas),
    isPublic: search.public === true || search.public === 'true',
  };
}

/** Returns the search parameters of a draft, without those that have their defaults. */
export function serviceSearchOf(draft: ServiceDraft): ServiceSearch {
  const r = Object.entries(draft.amounts)
    .filter(([, amount]) => amount !== '')
    .map(([slot, amount]) => `${slot}=${amount}`)
    .join(',');
  return {
    ...(draft.name && { name: draft.name }),
    ...(draft.model && { model: draft.model }),
    ...(draft.definition && { definition: draft.definition }),
    ...(draft.image && { image: draft.image }),
    ...(draft.variant !== customVariant && { variant: draft.variant }),
    ...(draft.command && { command: draft.command }),
    ...(draft.project && { project: draft.project }),
    ...(draft.group && { group: draft.group }),
    ...(r && { r }),
    ...(draft.replicas !== 1 && { replicas: draft.replicas }),
    ...(draft.isPublic && { public: true }),
  };
}
