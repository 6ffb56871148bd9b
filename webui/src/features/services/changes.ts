import type { ServiceDetails } from './queries';

/** What a person changes of a service, as the form has it; what the manager does not tell is empty, and stays so. */
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
    modelName: '',
    variant: service.runtime_variant,
    command: '',
    port: '',
    environ: '',
    amounts: {},
    tag: '',
  };
}

/** Returns the variables of lines such as `A=1`; null if a line is none. */
export function environOf(lines: string): Record<string, string> | null {
  const entries = lines
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => /^\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)$/.exec(line));
  if (entries.some((entry) => entry === null)) return null;
  return Object.fromEntries(entries.map((entry) => [entry?.[1] ?? '', entry?.[2] ?? '']));
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

/** Returns the body of the change: of the fields that differ, without those that were emptied, which cannot be. */
export function changeOf(
  draft: ChangeDraft,
  before: ChangeDraft,
): { body: Record<string, unknown>; wrong: ChangeField[] } {
  const body: Record<string, unknown> = {};
  const wrong: ChangeField[] = [];
  for (const [field, name] of Object.entries(texts) as [keyof typeof texts, string][]) {
    const text = draft[field].trim();
    if (text !== before[field] && text !== '') body[name] = text;
    else if (text === '' && before[field] !== '') wrong.push(field);
  }
  if (draft.isPublic !== before.isPublic) body.open_to_public = draft.isPublic;
  if (draft.port.trim() !== '') {
    if (/^\s*\d{1,5}\s*$/.test(draft.port)) body.port = Number(draft.port);
    else wrong.push('port');
  }
  if (draft.environ.trim() !== '') {
    const environ = environOf(draft.environ);
    if (environ === null) wrong.push('environ');
    else body.environ = environ;
  }
  const amounts = Object.entries(draft.amounts).filter(([, amount]) => amount.trim() !== '');
  if (amounts.length > 0) body.resources = Object.fromEntries(amounts);
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
