import { bytesOf, bytesText, linesOfSlots, secondsOf, secondsText, slotsOfLines } from '../../../api/amounts';
import { parseObject } from '../../../api/filters';
import { linesOf } from '../../../api/forms/lines';

/** What may be done on each storage host. */
export type HostPermissions = Readonly<Record<string, readonly string[]>>;

export type Value = string | boolean | string[] | HostPermissions;

/** Why a text is not taken: a message `malformed.NAME`. */
export type Malformed = 'count' | 'bytes' | 'seconds' | 'slots' | 'json' | 'required';

/** A field of a form, named as the API names it. */
export interface Field {
  name: string;
  /** The message of its label and hint, where another form has a field of the same name with another meaning. */
  words?: string;
  control: 'text' | 'lines' | 'secret' | 'choice' | 'tags' | 'check' | 'hosts';
  /** What it has at first: a value that stays is not sent. */
  value: Value;
  choices?: readonly (string | { value: string; label: string })[];
  /** What may be permitted on a storage host. */
  permissions?: readonly string[];
  /** Returns what the API takes for a value; null for one that it would not take. */
  read: (value: Value) => unknown;
  malformed?: Malformed;
  isRequired?: boolean;
}

const same = (value: Value): unknown => value;

export function textField(name: string, value: string | null | undefined, isRequired = false): Field {
  return {
    name,
    control: 'text',
    value: value ?? '',
    isRequired,
    malformed: 'required',
    read: (text) => (isRequired && String(text).trim() === '' ? null : String(text).trim()),
  };
}

export function secretField(name: string): Field {
  return { name, control: 'secret', value: '', read: same };
}

export function checkField(name: string, value: boolean | null | undefined): Field {
  return { name, control: 'check', value: value === true, read: same };
}

export function choiceField(name: string, value: string, choices: NonNullable<Field['choices']>): Field {
  return { name, control: 'choice', value, choices, read: same };
}

/** A number that is a limit; an empty text is `none`, and shown for whatever means no limit. */
function limitField(
  name: string,
  value: number | null | undefined,
  none: number | null,
  malformed: Malformed,
  parse: (text: string) => number | null,
  format: (value: number) => string,
): Field {
  const isLimit = value !== null && value !== undefined && value > 0;
  return {
    name,
    control: 'text',
    value: isLimit ? format(value) : '',
    malformed,
    isRequired: none === null,
    read: (text) => (String(text).trim() === '' ? none : parse(String(text))),
  };
}

const countOf = (text: string) => (/^\s*[1-9]\d{0,8}\s*$/.test(text) ? Number(text) : null);

/** A whole number; `none` stands for no limit, and null says that there has to be one. */
export const countField = (name: string, value: number | null | undefined, none: number | null = 0): Field =>
  limitField(name, value, none, 'count', countOf, String);

export const bytesField = (name: string, value: number | null | undefined, none: number): Field =>
  limitField(name, value, none, 'bytes', bytesOf, bytesText);

/** Bytes that the API takes as text. */
export function sizeField(name: string, value: number | null | undefined, none: number): Field {
  const field = bytesField(name, value, none);
  return {
    ...field,
    read: (text) => {
      const bytes = field.read(text);
      return bytes === null ? null : String(bytes);
    },
  };
}

/** A list of texts, one on a line. */
export function linesField(name: string, value: readonly string[]): Field {
  return {
    name,
    control: 'lines',
    value: value.join('\n'),
    read: (text) => linesOf(String(text)),
  };
}

export const secondsField = (name: string, value: number | null | undefined): Field =>
  limitField(name, value, 0, 'seconds', secondsOf, secondsText);

export function slotsField(name: string, value: string | null | undefined): Field {
  return {
    name,
    control: 'lines',
    value: linesOfSlots(value),
    malformed: 'slots',
    read: (text) => slotsOfLines(String(text)),
  };
}

/** An object as JSON. */
export function jsonField(name: string, value: string | null | undefined): Field {
  const known = parseObject(value);
  return {
    name,
    control: 'lines',
    value: Object.keys(known).length === 0 ? '' : JSON.stringify(known, null, 2),
    malformed: 'json',
    read: (text) => {
      if (String(text).trim() === '') return '{}';
      const object = parseObject(String(text));
      return Object.keys(object).length === 0 || Array.isArray(object) ? null : JSON.stringify(object);
    },
  };
}

/** Storage hosts with what may be done on each. */
export function hostsField(
  name: string,
  value: string | null | undefined,
  hosts: readonly string[],
  permissions: readonly string[],
): Field {
  const known = Object.entries(parseObject(value)).map(
    ([host, names]) => [host, Array.isArray(names) ? names.map(String) : []] as const,
  );
  return {
    name,
    control: 'hosts',
    value: Object.fromEntries(known),
    choices: [...new Set([...hosts, ...known.map(([host]) => host)])],
    permissions,
    read: (chosen) => JSON.stringify(chosen),
  };
}

export function namesField(
  name: string,
  value: readonly string[],
  choices: readonly string[] = [],
  read: Field['read'] = same,
): Field {
  return { name, control: 'tags', value: [...value], choices, read };
}

export type Values = Readonly<Record<string, Value>>;
export type Props = Record<string, unknown>;

/** Returns what is to be sent: of the fields that have changed; `errors` name those whose text is not taken. */
export function propsOf(
  fields: readonly Field[],
  values: Values,
): { props: Props; errors: Partial<Record<string, Malformed>> } {
  const props: Props = {};
  const errors: Partial<Record<string, Malformed>> = {};
  for (const field of fields) {
    const value = values[field.name] ?? field.value;
    const isUnchanged = JSON.stringify(value) === JSON.stringify(field.value);
    if (isUnchanged && !(field.isRequired && value === '')) continue;
    const read = field.read(value);
    if (read === null) errors[field.name] = field.malformed ?? 'required';
    else props[field.name] = read;
  }
  return { props, errors };
}
