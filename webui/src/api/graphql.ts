import type { initGraphQLTada, TadaDocumentNode } from 'gql.tada';
import { apiBase, send } from './client';
import type { introspection } from './generated/graphql';
import { Problem } from './problems';

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

interface Reply<T> {
  data?: T | null;
  errors?: { message: string; extensions?: { type?: string; status?: number; data?: Record<string, string> } }[];
}

/** Asks the manager. Throws Problem for the first error of the reply. */
export async function query<T, V>(
  document: TadaDocumentNode<T, V>,
  variables: V,
  options: { signal?: AbortSignal; isRead?: boolean } = {},
): Promise<T> {
  const request = new Request(`${window.location.origin}${apiBase}/admin/gql`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ query: document, variables }),
    signal: options.signal ?? null,
  });
  const response = await send(request, options.isRead ?? true);
  const reply = (await response.json().catch(() => ({}))) as Reply<T>;
  const error = reply.errors?.[0];
  if (error !== undefined || reply.data === null || reply.data === undefined) {
    const extensions = error?.extensions;
    throw new Problem({
      type: extensions?.type ?? 'about:blank',
      title: error?.message ?? 'The reply is no data.',
      status: extensions?.status ?? 500,
      fields: extensions?.data ?? {},
      requestId: response.headers.get('X-Request-ID') ?? '',
    });
  }
  return reply.data;
}

/** Changes something. It is not repeated after an expired login. Throws Problem, also where the reply's `ok` is false. */
export async function mutate<T, V>(document: TadaDocumentNode<T, V>, variables: V): Promise<T> {
  const data = await query(document, variables, { isRead: false });
  for (const part of Object.values(data as Record<string, { ok?: boolean; msg?: string } | null>)) {
    if (part?.ok === false) throw new Problem({ title: part.msg ?? 'refused', status: 400 });
  }
  return data;
}
