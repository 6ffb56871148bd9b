import { environOf, environText } from '../../api/environ';
import type { ServiceDetails } from './queries';

/** What a person changes of a service, as the form has it. */
export interface ChangeDraft {
  name: string;
  isPublic: boolean;
  image: string;
  model: string;
  version: string;
  definition: string;
  modelName: string;
  variant: string;
  command: string;
  port: string;
  environ: string;
  amounts: Record<string, string>;
  tag: string;
}
export type ChangeField = keyof ChangeDraft;

export function changeDraftOf(service: ServiceDetails, folders: Readonly<Record<string, string>>): ChangeDraft {
  return {
    name: service.name,
    isPublic: service.is_public,
    image: service.image,
    model: folders[service.model_id] ?? service.model_id,
    version: service.model_version ?? '',
    definition: service.model_definition_path ?? '',
    modelName: service.served_model ?? '',
    variant: service.runtime_variant,
    command: service.startup_command ?? '',
    port: service.port === null ? '' : String(service.port),
    environ: environText(service.environ),
    amounts: service.resources,
    tag: service.tag ?? '',
  };
}

/** The name of the API for each field that is sent as its text. */
const texts = {
  name: 'name',
  image: 'image',
  model: 'model',
  version: 'model_version',
  definition: 'model_definition_path',
  modelName: 'model_name',
  variant: 'runtime_variant',
  command: 'startup_command',
  tag: 'tag',
} as const satisfies Partial<Record<ChangeField, string>>;
const clearable = new Set<ChangeField>(['version', 'definition', 'modelName', 'command', 'tag']);

function amountsOf(draft: ChangeDraft): Record<string, string> {
  const entries = Object.entries(draft.amounts).map(([slot, amount]) => [slot, amount.trim()] as const);
  return Object.fromEntries(entries.filter(([, amount]) => amount !== '').sort(([a], [b]) => a.localeCompare(b)));
}

/** Returns the body of the change: of the fields that differ, with null for those that were emptied. */
export function changeOf(
  draft: ChangeDraft,
  before: ChangeDraft,
): { body: Record<string, unknown>; wrong: ChangeField[] } {
  const body: Record<string, unknown> = {};
  const wrong: ChangeField[] = [];
  for (const [field, name] of Object.entries(texts) as [keyof typeof texts, string][]) {
    const text = draft[field].trim();
    if (text === before[field].trim()) continue;
    if (text !== '') body[name] = text;
    else if (clearable.has(field)) body[name] = null;
    else wrong.push(field);
  }
  if (draft.isPublic !== before.isPublic) body.open_to_public = draft.isPublic;
  const port = draft.port.trim();
  if (port !== before.port) {
    if (port === '') body.port = null;
    else if (/^\d{1,5}$/.test(port)) body.port = Number(port);
    else wrong.push('port');
  }
  if (draft.environ !== before.environ) {
    const environ = environOf(draft.environ);
    if (environ === null) wrong.push('environ');
    else body.environ = environ; // not null: secrets, which the form does not show, stay
  }
  const amounts = amountsOf(draft);
  if (JSON.stringify(amounts) !== JSON.stringify(amountsOf(before))) {
    body.resources = Object.keys(amounts).length > 0 ? amounts : null;
  }
  return { body, wrong };
}

/** Whether a change rolls out a new revision. */
export function makesRevision(body: Readonly<Record<string, unknown>>): boolean {
  return Object.keys(body).some((name) => name !== 'name' && name !== 'open_to_public');
}

/** The field for each name that the manager gives in a problem. */
export const changeFields: Record<string, ChangeField> = {
  ...Object.fromEntries((Object.entries(texts) as [ChangeField, string][]).map(([field, name]) => [name, field])),
  mounts: 'model',
  model_definition: 'model',
  arch: 'image',
  architecture: 'image',
  startupCommand: 'command',
  open_to_public: 'isPublic',
  port: 'port',
  environ: 'environ',
  resources: 'amounts',
  resource_opts: 'amounts',
};
