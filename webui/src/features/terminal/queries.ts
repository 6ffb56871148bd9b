import { queryOptions } from '@tanstack/react-query';
import { apiBase } from '../../api/client';
import { graphql, query } from '../../api/graphql';
import { keys } from '../../api/keys';

const terminalQuery = graphql(`
  query ($id: UUID!) {
    compute_session(id: $id) { id name status }
  }
`);

/** Name and status of the session that a terminal is of; null if the person may not see it. */
export const terminalOptions = (id: string) =>
  queryOptions({
    queryKey: [...keys.session(id), 'terminal'],
    queryFn: async ({ signal }) => (await query(terminalQuery, { id }, { signal })).compute_session ?? null,
  });

/** Returns True while a session can have terminals. */
export function hasTerminals(status: string | null | undefined): boolean {
  return status === 'RUNNING' || status === 'RUNNING_DEGRADED';
}

/** Returns the address of a new terminal of a session, which opens with a size. */
export function terminalUrl(id: string, rows: number, columns: number): string {
  const url = new URL(`${apiBase}/stream/session/${encodeURIComponent(id)}/pty`, window.location.origin);
  url.search = new URLSearchParams({ rows: String(rows), cols: String(columns) }).toString();
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  return url.href;
}
