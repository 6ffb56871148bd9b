import type { components } from '../../api/generated/rest';

/** A line that a field takes, with a text about it. */
export interface OfferedLine {
  line: string;
  about: string;
}

type Variant = components['schemas']['ai.backend.manager.resources.api.VariantItem'];
interface ValueSchema {
  enum?: unknown[];
  const?: unknown;
  anyOf?: ValueSchema[];
  type?: string;
  minimum?: number;
  maximum?: number;
  default?: unknown;
  description?: string;
}

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null;

/** Returns the properties of devices that a session may require, with the devices that have them. */
export function offeredVariants(variants: readonly Variant[]): OfferedLine[] {
  return variants.map(({ property, device_names, devices }) => {
    const count = Object.values(devices).reduce((sum, each) => sum + each, 0);
    return { line: property, about: `${device_names.join(', ')}: ${count}` };
  });
}

/** Returns what a JSON Schema allows: its values, else its type and bounds. */
export function allowedBy(schema: ValueSchema): string {
  if (schema.enum) return schema.enum.map(String).join(', ');
  if (schema.const !== undefined) return String(schema.const);
  const choices = schema.anyOf?.filter(({ type }) => type !== 'null');
  if (choices) return choices.map(allowedBy).join(' | ');
  const { minimum, maximum } = schema;
  const bounds = minimum === undefined && maximum === undefined ? '' : ` ${minimum ?? ''}…${maximum ?? ''}`;
  return `${schema.type ?? ''}${bounds}`.trim();
}

/** A line sets the option to its default, else to the first of its values; without either a person completes it. */
function optionLine(name: string, schema: ValueSchema): string {
  const value = schema.default ?? schema.enum?.[0] ?? schema.const ?? '';
  return `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`;
}

/** Returns the options of accelerator plugins by their JSON Schemas; those of several versions of a plugin once. */
export function offeredOptions(schemas: Record<string, readonly unknown[]>): OfferedLine[] {
  const offered = new Map<string, OfferedLine>();
  for (const [plugin, versions] of Object.entries(schemas)) {
    for (const schema of versions) {
      const properties = isRecord(schema) && isRecord(schema.properties) ? schema.properties : {};
      for (const [option, value] of Object.entries(properties)) {
        const entry: ValueSchema = isRecord(value) ? value : {};
        const about = [allowedBy(entry), entry.description ?? ''].filter((text) => text !== '').join('. ');
        const name = `${plugin}.${option}`;
        if (!offered.has(name)) offered.set(name, { line: optionLine(name, entry), about });
      }
    }
  }
  return [...offered.values()];
}
