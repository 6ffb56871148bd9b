// Writes the types of the manager's API from its reference documents: REST from openapi.json, GraphQL from graphql.md.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import openapiTS, { astToString } from 'openapi-typescript';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const reference = process.env.BACKENDAI_REFERENCE ?? join(root, '..', 'docs', 'reference');
const target = join(root, 'src', 'api', 'generated');
mkdirSync(target, { recursive: true });

const page = readFileSync(join(reference, 'graphql.md'), 'utf8');
const schema = /```graphql\n([\s\S]*?)```/.exec(page)?.[1];
if (schema === undefined) throw new Error(`${reference}/graphql.md has no block of GraphQL.`);
writeFileSync(join(target, 'schema.graphql'), schema);

const rest = await openapiTS(pathToFileURL(join(reference, 'openapi.json')), {
  defaultNonNullable: false,
  silent: true,
});
writeFileSync(join(target, 'rest.d.ts'), astToString(rest));

const tada = join(root, 'node_modules', 'gql.tada', 'bin', 'cli.js');
execFileSync(process.execPath, [tada, 'generate-output'], { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] });
