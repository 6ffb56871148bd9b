import { environOf } from '../../api/environ';
import { linesOf } from '../../api/forms/lines';
import { mountConfigOf } from '../../api/forms/mounts';

/** What a session is to have instead of what its template says; empty where the template decides. */
export interface StartDraft {
  name: string;
  resources: string; // lines such as `cpu=2`
  env: string; // lines such as `A=1`
  mounts: string[];
  paths: Record<string, string>;
  readOnly: string[];
  claim: string;
  /** It gets no claim, although its template has one. */
  isUnclaimed: boolean;
}

export const emptyStart: StartDraft = {
  name: '',
  resources: '',
  env: '',
  mounts: [],
  paths: {},
  readOnly: [],
  claim: '',
  isUnclaimed: false,
};

export type StartField = 'name' | 'resources' | 'env' | 'mounts' | 'claim';

/** The part of a request that replaces what a template says. */
export interface StartChanges {
  name?: string;
  config?: Record<string, unknown>;
}

/** Reads lines such as `cpu=2`; null if one is none. */
function amountsOf(lines: string): Record<string, string> | null {
  const entries = linesOf(lines).map((line) => /^([A-Za-z][\w.-]*)\s*=\s*(\S+)$/.exec(line));
  if (entries.some((entry) => entry === null)) return null;
  return Object.fromEntries(entries.map((entry) => [entry?.[1] ?? '', entry?.[2] ?? '']));
}

/** Returns what a draft changes, and the fields that cannot be read. */
export function changesOf(draft: StartDraft): { changes: StartChanges; wrong: StartField[] } {
  const resources = amountsOf(draft.resources);
  const environ = environOf(draft.env);
  const wrong: StartField[] = [];
  if (resources === null) wrong.push('resources');
  if (environ === null) wrong.push('env');
  const claim = draft.isUnclaimed ? '' : draft.claim.trim() || null;
  const config = {
    ...(Object.keys(resources ?? {}).length > 0 && { resources }),
    ...(Object.keys(environ ?? {}).length > 0 && { environ }),
    ...mountConfigOf(draft),
    ...(claim !== null && { claim }),
  };
  return {
    wrong,
    changes: {
      ...(draft.name.trim() !== '' && { name: draft.name.trim() }),
      ...(Object.keys(config).length > 0 && { config }),
    },
  };
}

/** The field for each name that the manager gives in a problem. */
export const startFields: Record<string, StartField> = {
  name: 'name',
  resources: 'resources',
  environ: 'env',
  mounts: 'mounts',
  mount_map: 'mounts',
  mount_options: 'mounts',
  claim: 'claim',
};
