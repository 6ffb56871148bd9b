import { queryOptions, useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import { filterOf } from '../../api/filters';
import { graphql, query } from '../../api/graphql';
import { keys } from '../../api/keys';
import { asProblem, type Problem } from '../../api/problems';
import { usePollInterval } from '../../api/useLive';
import { type ListPage, type Pages, usePages } from '../../components/usePages';
import { statusArgument } from './rules';

export const listQuery = graphql(`
  query ($limit: Int!, $offset: Int!, $status: String, $filter: String, $order: String, $access_key: String) {
    compute_session_list(limit: $limit, offset: $offset, status: $status, filter: $filter, order: $order, access_key: $access_key) {
      total_count
      items {
        id name type status status_info status_data image user_email group_name scaling_group cluster_size
        requested_slots created_at started_at terminated_at
      }
    }
  }
`);

export const sessionQuery = graphql(`
  query ($id: UUID!) {
    compute_session(id: $id) {
      id name type tag status status_info status_data status_history image architecture user_email access_key
      group_name domain_name scaling_group cluster_mode cluster_size requested_slots occupying_slots resource_opts mounts
      created_at starts_at started_at terminated_at startup_command result service_ports idle_checks agents
      array_name array_index variant_requirements device_requests claim runtime_class
      dependencies { id name status }
      containers { id cluster_role cluster_idx cluster_hostname status status_info exit_code agent attached_devices occupied_slots }
    }
  }
`);

export const statsQuery = graphql(`
  query ($id: UUID!) {
    compute_session(id: $id) { id status containers { id cluster_hostname live_stat } }
  }
`);

async function fetchList(
  variables: {
    limit: number;
    offset: number;
    status: string | null;
    filter: string | null;
    order: string;
    access_key: string | null;
  },
  signal: AbortSignal,
) {
  const data = await query(listQuery, variables, { signal });
  const list = data.compute_session_list;
  return {
    total: list?.total_count ?? 0,
    items: (list?.items ?? []).filter((item): item is NonNullable<typeof item> => item !== null),
  };
}

export type SessionRow = Awaited<ReturnType<typeof fetchList>>['items'][number];

export interface ListSelection {
  q: string;
  status: string;
  sort: string;
  /** An access key, or empty for all sessions that the person may see. */
  accessKey: string;
}

/** Returns the list in a stable order: the id decides among equals. */
export function useSessionPages({ q, status, sort, accessKey }: ListSelection): Pages<SessionRow> {
  const interval = usePollInterval();
  return usePages<SessionRow>(
    [...keys.sessions, { q, status, sort, accessKey }],
    (offset, limit, signal): Promise<ListPage<SessionRow>> =>
      fetchList(
        {
          limit,
          offset,
          status: statusArgument(status),
          filter: filterOf('name', q),
          order: `${sort},id`,
          access_key: accessKey || null,
        },
        signal,
      ),
    interval,
  );
}

/** Returns the first sessions of a group of statuses, with their total number. */
export function useSessionsOf(status: string, limit: number, accessKey: string) {
  const interval = usePollInterval();
  return useQuery({
    queryKey: [...keys.sessions, 'first', status, limit, accessKey],
    queryFn: ({ signal }) =>
      fetchList(
        {
          limit,
          offset: 0,
          status: statusArgument(status),
          filter: null,
          order: '-created_at,id',
          access_key: accessKey || null,
        },
        signal,
      ),
    refetchInterval: interval,
    enabled: accessKey !== '',
  });
}

export const sessionOptions = (id: string) =>
  queryOptions({
    queryKey: keys.session(id),
    queryFn: async ({ signal }) => (await query(sessionQuery, { id }, { signal })).compute_session ?? null,
  });

export type SessionDetails = NonNullable<
  Awaited<ReturnType<NonNullable<ReturnType<typeof sessionOptions>['queryFn']>>>
>;

export function useSession(id: string) {
  return useQuery({ ...sessionOptions(id), refetchInterval: usePollInterval() });
}

export function useStats(id: string, isRunning: boolean) {
  return useQuery({
    queryKey: [...keys.session(id), 'stats'],
    queryFn: async ({ signal }) => (await query(statsQuery, { id }, { signal })).compute_session,
    refetchInterval: isRunning ? 5_000 : false,
  });
}

export function useLogs(id: string, kernel: string | null, isRunning: boolean) {
  return useQuery({
    queryKey: [...keys.session(id), 'logs', kernel],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/session/{s}/logs', { params: { path: { s: id }, query: kernel ? { kernel } : {} }, signal })),
    refetchInterval: isRunning ? 5_000 : false,
  });
}

export function useApps(id: string) {
  return useQuery({
    queryKey: [...keys.session(id), 'apps'],
    queryFn: ({ signal }) => dataOf(rest.GET('/stream/session/{s}/apps', { params: { path: { s: id } }, signal })),
  });
}

export function useStartApp(id: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (app: string) =>
      dataOf(rest.POST('/session/{s}/start-service', { params: { path: { s: id } }, body: { app } })),
    onSettled: () => client.invalidateQueries({ queryKey: [...keys.session(id), 'apps'] }),
  });
}

const parallel = 4;

/** Ends sessions, a few at a time, and returns the problem of each that could not be ended. */
export async function terminateAll(
  ids: readonly string[],
  forced: boolean,
  onProgress: (done: number) => void = () => {},
): Promise<Map<string, Problem>> {
  const problems = new Map<string, Problem>();
  const waiting = [...ids];
  let done = 0;
  const work = async () => {
    for (let id = waiting.shift(); id !== undefined; id = waiting.shift()) {
      try {
        await rest.DELETE('/session/{s}', { params: { path: { s: id }, query: forced ? { forced: true } : {} } });
      } catch (error) {
        problems.set(id, asProblem(error));
      }
      done += 1;
      onProgress(done);
    }
  };
  await Promise.all(Array.from({ length: Math.min(parallel, ids.length) }, work));
  return problems;
}
