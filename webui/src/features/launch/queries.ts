import { keepPreviousData, useMutation, useQueries, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import { graphql, query } from '../../api/graphql';
import { keys } from '../../api/keys';
import type { CreateBody } from './rules';

export const imagesQuery = graphql(`
  query {
    images(is_operation: false) { id name tag registry aliases architecture resource_limits { key min } }
  }
`);

export function useLaunchImages() {
  return useQuery({
    queryKey: ['images', 'launch'],
    queryFn: async ({ signal }) =>
      ((await query(imagesQuery, {}, { signal })).images ?? []).filter((image) => image !== null),
    staleTime: 60_000,
  });
}

export function useQuotas(project: string, group: string) {
  return useQuery({
    queryKey: [...keys.quota(project), group],
    queryFn: ({ signal }) =>
      dataOf(rest.POST('/resource/check-presets', { body: { group: project, scaling_group: group }, signal })),
    enabled: project !== '' && group !== '',
    placeholderData: keepPreviousData,
    staleTime: 5_000,
  });
}

const explanationOptions = (body: CreateBody | null, count: number) => ({
  queryKey: ['explain', body, count] as const,
  queryFn: ({ signal }: { signal: AbortSignal }) =>
    dataOf(
      rest.POST('/session/_/explain', {
        params: { query: { count } },
        body: body as CreateBody,
        signal,
      }),
    ),
  enabled: body !== null,
  retry: false,
  staleTime: 2_000,
});

/** What would become of a request now. The answer before stays until the next one is there. */
export function useVerdict(body: CreateBody | null, count: number) {
  return useQuery({ ...explanationOptions(body, count), placeholderData: keepPreviousData, refetchInterval: 15_000 });
}

export function useVerdicts(bodies: readonly (CreateBody | null)[]) {
  return useQueries({ queries: bodies.map((body) => ({ ...explanationOptions(body, 1), staleTime: 15_000 })) });
}

export interface Launched {
  id: string;
  name: string;
}

/** Enqueues a batch session for each index, all or none; a repetition of the same launch makes no others. */
export function useLaunchArray() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: ({ body, indices, token }: { body: CreateBody; indices: string; token: string }) =>
      dataOf(
        rest.POST('/arrays', {
          // The manager names an array whose request has no name.
          body: { indices, session: { ...body, name: body.name ?? null } as CreateBody },
          headers: { 'X-BackendAI-Client-Token': token },
        }),
      ),
    onSettled: () => client.invalidateQueries({ queryKey: keys.sessions }),
  });
}

/** Creates `count` equal sessions; a repetition of the same launch makes no others. */
export function useLaunch() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: async ({
      body,
      count,
      token,
    }: {
      body: CreateBody;
      count: number;
      token: string;
    }): Promise<Launched[]> => {
      const launched: Launched[] = [];
      for (let number = 0; number < count; number += 1) {
        const named = count > 1 && body.name ? { ...body, name: `${body.name}-${number + 1}` } : body;
        const reply = await dataOf(
          rest.POST('/session', {
            body: named,
            headers: { 'X-BackendAI-Client-Token': `${token}-${number}` },
          }),
        );
        launched.push({ id: reply.sessionId, name: reply.name });
      }
      return launched;
    },
    onSettled: () => client.invalidateQueries({ queryKey: keys.sessions }),
  });
}
