import type { initGraphQLTada, TadaDocumentNode } from 'gql.tada';
import { apiBase, send } from './client';
import type { introspection } from './generated/graphql';
import { type Problem, problemFrom } from './problems';
import { proofRequired, proofs } from './proof';

type Documents = ReturnType<
  typeof initGraphQLTada<{
    introspection: introspection;
    scalars: { UUID: string; DateTime: string; JSONString: string; BigInt: number; VFolderHosts: unknown };
  }>
>;

/**
 * Types a document by the schema of the manager. At run time a document is its text: nothing parses it in the browser,
 * and so it cannot be composed of fragments of others.
 */
export const graphql = ((text: string) => text) as unknown as Documents;

interface ProblemParts {
  type?: string;
  status?: number;
  data?: Record<string, unknown>;
}

interface Reply<T> {
  data?: T | null;
  errors?: { message: string; extensions?: ProblemParts }[];
  extensions?: { problems?: Record<string, ProblemParts> };
}

function problemOf(title: string, parts: ProblemParts | undefined, status: number, requestId: string): Problem {
  return problemFrom(parts?.status ?? status, { ...parts, title, request_id: requestId });
}

async function ask<T, V>(
  document: TadaDocumentNode<T, V>,
  variables: V,
  isRead: boolean,
  signal?: AbortSignal,
): Promise<{ data: T; problems: Record<string, ProblemParts>; requestId: string }> {
  const request = new Request(`${window.location.origin}${apiBase}/admin/gql`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ query: document, variables }),
    signal: signal ?? null,
  });
  const response = await send(request, isRead);
  const reply = (await response.json().catch(() => ({}))) as Reply<T>;
  const requestId = response.headers.get('X-Request-ID') ?? '';
  const error = reply.errors?.[0];
  if (error !== undefined || reply.data === null || reply.data === undefined) {
    throw problemOf(error?.message ?? 'The reply is no data.', error?.extensions, 500, requestId);
  }
  return { data: reply.data, problems: reply.extensions?.problems ?? {}, requestId };
}

/** Asks the manager. Throws Problem for the first error of the reply. */
export async function query<T, V>(
  document: TadaDocumentNode<T, V>,
  variables: V,
  options: { signal?: AbortSignal; isRead?: boolean } = {},
): Promise<T> {
  return (await ask(document, variables, options.isRead ?? true, options.signal)).data;
}

/** Changes something. It is repeated with a recent proof of who is there where that is lacking, not after an expired login. Throws Problem, also where the reply's `ok` is false. */
export async function mutate<T, V>(document: TadaDocumentNode<T, V>, variables: V, mayProve = true): Promise<T> {
  const { data, problems, requestId } = await ask(document, variables, false);
  for (const [name, part] of Object.entries(data as Record<string, { ok?: boolean; msg?: string } | null>)) {
    if (part?.ok !== false) continue;
    const problem = problemOf(part.msg ?? 'refused', problems[name], 400, requestId);
    if (problem.code === proofRequired && mayProve && (await proofs.obtain()))
      return mutate(document, variables, false);
    throw problem;
  }
  return data;
}
