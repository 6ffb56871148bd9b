import { readFileSync } from 'node:fs';
import { buildSchema, parse, type SelectionSetNode, validate } from 'graphql';
import { describe, expect, it } from 'vitest';

const maxDepth = 16;
const schema = buildSchema(readFileSync('src/api/generated/schema.graphql', 'utf8'));
const modules = import.meta.glob<Record<string, unknown>>('../{app,features,api}/**/{queries,me,choices}.ts', {
  eager: true,
});
const documents = Object.entries(modules).flatMap(([path, module]) =>
  Object.entries(module)
    .filter((entry): entry is [string, string] => typeof entry[1] === 'string' && /^\s*(query|mutation)/.test(entry[1]))
    .map(([name, text]) => [`${path} ${name}`, text] as const),
);

function depthOf(set: SelectionSetNode | undefined): number {
  return set === undefined
    ? 0
    : 1 + Math.max(0, ...set.selections.map((item) => depthOf('selectionSet' in item ? item.selectionSet : undefined)));
}

describe('every stored document', () => {
  it('is found', () => expect(documents.length).toBeGreaterThan(6));
  it.each(documents)('%s fits the schema and its limits', (_, text) => {
    const document = parse(text);
    expect(validate(schema, document).map((error) => error.message)).toEqual([]);
    for (const definition of document.definitions) {
      expect(depthOf('selectionSet' in definition ? definition.selectionSet : undefined)).toBeLessThanOrEqual(maxDepth);
    }
  });
});
