import { keepPreviousData, useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import { filterOf } from '../../api/filters';
import type { components } from '../../api/generated/rest';
import { graphql, query } from '../../api/graphql';
import { keys } from '../../api/keys';
import { type ListPage, type Pages, usePages } from '../../components/usePages';
import type { PolicyChange } from './rollout';
import { type CreateServiceBody, pollIntervalOf, type UseGrouping } from './rules';

export type ServiceDetails = components['schemas']['ServiceReply'];

/** They begin as the keys of sessions, whose events make services out of date: a replica is a session. */
export const serviceKeys = {
  all: [...keys.sessions, 'services'] as const,
  one: (id: string) => [...keys.sessions, 'services', 'one', id] as const,
};

export const historyPageSize = 50;
export const tokensPageSize = 20;

export const servicesQuery = graphql(`
  query ($limit: Int!, $offset: Int!, $filter: String, $order: String) {
    endpoint_list(limit: $limit, offset: $offset, filter: $filter, order: $order) {
      total_count
      items {
        endpoint_id name status status_reason desired_session_count ready_count url open_to_public
        session_owner_email created_at
      }
    }
  }
`);

export const tokensQuery = graphql(`
  query ($id: UUID!, $limit: Int!, $offset: Int!) {
    endpoint_token_list(endpoint_id: $id, limit: $limit, offset: $offset) {
      total_count
      items { created_at valid_until }
    }
  }
`);

export const imagesQuery = graphql(`
  query {
    images(is_operation: false) { name tag aliases }
  }
`);

async function fetchServices(
  variables: { limit: number; offset: number; filter: string | null; order: string },
  signal: AbortSignal,
) {
  const list = (await query(servicesQuery, variables, { signal })).endpoint_list;
  return {
    total: list?.total_count ?? 0,
    items: (list?.items ?? []).filter((item): item is NonNullable<typeof item> => item !== null),
  };
}

export type ServiceRow = Awaited<ReturnType<typeof fetchServices>>['items'][number];

/** Returns the services that the person sees, in a stable order: the id decides among equals. */
export function useServicePages(q: string, sort: string): Pages<ServiceRow> {
  return usePages<ServiceRow>(
    [...serviceKeys.all, 'list', q, sort],
    (offset, limit, signal): Promise<ListPage<ServiceRow>> =>
      fetchServices({ limit, offset, filter: filterOf('name', q), order: `${sort},id` }, signal),
    15_000,
  );
}

export function useService(id: string) {
  return useQuery({
    queryKey: serviceKeys.one(id),
    queryFn: ({ signal }) => dataOf(rest.GET('/services/{e}', { params: { path: { e: id } }, signal })),
    refetchInterval: (running) => pollIntervalOf(running.state.data?.status),
  });
}

/** Why a service is as it is; `status` is its last known one. */
export function useServiceWhy(id: string, status: string) {
  return useQuery({
    queryKey: [...serviceKeys.one(id), 'why'],
    queryFn: ({ signal }) => dataOf(rest.GET('/services/{e}/why', { params: { path: { e: id } }, signal })),
    refetchInterval: pollIntervalOf(status),
  });
}

/** A page of the changes of a service, newest first, with whether there are older ones. */
export function useServiceHistory(id: string, page: number) {
  return useQuery({
    queryKey: [...serviceKeys.one(id), 'history', page],
    queryFn: async ({ signal }) => {
      const { events } = await dataOf(
        rest.GET('/services/{e}/history', {
          params: { path: { e: id }, query: { limit: historyPageSize + 1, offset: page * historyPageSize } },
          signal,
        }),
      );
      return { events: events.slice(0, historyPageSize), hasMore: events.length > historyPageSize };
    },
    placeholderData: keepPreviousData,
  });
}

/** The latest tokens of a service: who has one is not known to the manager, only until when it is valid. */
export function useServiceTokens(id: string, page: number) {
  return useQuery({
    queryKey: [...serviceKeys.one(id), 'tokens', page],
    queryFn: async ({ signal }) => {
      const place = { limit: tokensPageSize, offset: (page - 1) * tokensPageSize };
      const list = (await query(tokensQuery, { id, ...place }, { signal })).endpoint_token_list;
      return { total: list?.total_count ?? 0, items: (list?.items ?? []).filter((item) => item !== null) };
    },
    placeholderData: keepPreviousData,
  });
}

/** What tokens used at a service in the last 30 days. */
export function useServiceUse(id: string, by: UseGrouping) {
  return useQuery({
    queryKey: [...serviceKeys.one(id), 'use', by],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/services/{e}/usage', { params: { path: { e: id }, query: { by } }, signal })),
    placeholderData: keepPreviousData,
    refetchInterval: 15_000,
  });
}

export function useRuntimeVariants() {
  return useQuery({
    queryKey: ['runtime-variants'],
    queryFn: async ({ signal }) => (await dataOf(rest.GET('/services/_/runtimes', { signal }))).runtimes,
    staleTime: 10 * 60_000,
  });
}

export function useServedImages() {
  return useQuery({
    queryKey: ['images', 'services'],
    queryFn: async ({ signal }) =>
      ((await query(imagesQuery, {}, { signal })).images ?? []).filter((image) => image !== null),
    staleTime: 60_000,
  });
}

export function useModelFolders() {
  return useQuery({
    queryKey: ['folders', 'services'],
    queryFn: async ({ signal }) => (await dataOf(rest.GET('/folders', { signal }))) as { id: string; name: string }[],
    staleTime: 30_000,
  });
}

function useChange<T, R>(mutationFn: (input: T) => Promise<R>, gcTime = 60_000) {
  const client = useQueryClient();
  return useMutation({ mutationFn, gcTime, onSettled: () => client.invalidateQueries({ queryKey: serviceKeys.all }) });
}

const at = (id: string) => ({ path: { e: id } });

export const useScale = (id: string) =>
  useChange((to: number) => dataOf(rest.POST('/services/{e}/scale', { params: at(id), body: { to } })));

export const useRollback = (id: string) =>
  useChange((_: undefined) => dataOf(rest.POST('/services/{e}/rollback', { params: at(id) })));

export const usePromote = (id: string) =>
  useChange((_: undefined) => dataOf(rest.POST('/services/{e}/promote', { params: at(id) })));

/** Changes a service; another image, model, command or environment is rolled out as a new revision. */
export const useModify = (id: string) =>
  useChange((body: Record<string, unknown>) => dataOf(rest.PATCH('/services/{e}', { params: at(id), body })));

/** Sends the routes of a service to the app proxy again. */
export const useSync = (id: string) =>
  useChange((_: undefined) => dataOf(rest.POST('/services/{e}/sync', { params: at(id) })));

/** Changes how later steps and revisions are rolled out; what is absent stays. */
export const useSetPolicy = (id: string) =>
  useChange((policy: PolicyChange) =>
    dataOf(rest.PATCH('/services/{e}', { params: at(id), body: { policy: policy as Record<string, never> } })),
  );

const ofReplica = (id: string, replica: string) => ({ path: { e: id, r: replica } });

/** Gives a replica another weight among those of its revision. */
export const useSetWeight = (id: string) =>
  useChange(({ replica, weight }: { replica: string; weight: number }) =>
    dataOf(rest.PUT('/services/{e}/routings/{r}', { params: ofReplica(id, replica), body: { traffic_ratio: weight } })),
  );

/** Ends a replica, and lowers the wanted number by one. */
export const useEndReplica = (id: string) =>
  useChange((replica: string) => dataOf(rest.DELETE('/services/{e}/routings/{r}', { params: ofReplica(id, replica) })));

export const useDestroy = (id: string) =>
  useChange((_: undefined) => dataOf(rest.DELETE('/services/{e}', { params: at(id) })));

/** Makes a token, which is in this reply and nowhere else, and is forgotten when the page is left. */
export const useNewToken = (id: string) =>
  useChange((duration: string) => dataOf(rest.POST('/services/{e}/token', { params: at(id), body: { duration } })), 0);

/** Creates a service; a repetition of the same request makes no other. */
export const useCreateService = () =>
  useChange(({ body, token }: { body: CreateServiceBody; token: string }) =>
    dataOf(rest.POST('/services', { body, headers: { 'X-BackendAI-Client-Token': token } })),
  );

/** Starts a trial and returns the id of its task. */
export const useTry = () =>
  useMutation({
    mutationFn: async (body: CreateServiceBody) => (await dataOf(rest.POST('/services/_/try', { body }))).task_id,
  });
