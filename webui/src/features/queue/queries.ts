import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import type { components } from '../../api/generated/rest';
import { keys } from '../../api/keys';
import { usePollInterval } from '../../api/useLive';

export type QueueView = components['schemas']['QueueView'];
export type QueueEntry = components['schemas']['QueueEntry'];
export type SharesView = components['schemas']['SharesView'];

export const queuePageSize = 50;

export function useQueueGroups(project: string) {
  return useQuery({
    queryKey: ['resource-groups', project],
    queryFn: async ({ signal }) =>
      (await dataOf(rest.GET('/scaling-groups', { params: { query: { group: project } }, signal }))).scaling_groups.map(
        (group) => group.name,
      ),
    enabled: project !== '',
    staleTime: 60_000,
  });
}

/** The queue of a resource group; its key begins as that of sessions, whose events make it out of date. */
export function useQueue(group: string, offset: number) {
  const interval = usePollInterval();
  return useQuery({
    queryKey: [...keys.sessions, 'queue', group, offset],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/scheduling/queue', {
          params: { query: { scaling_group: group, limit: queuePageSize, offset } },
          signal,
        }),
      ),
    enabled: group !== '',
    placeholderData: keepPreviousData,
    refetchInterval: interval,
  });
}

export function useShares(group: string) {
  return useQuery({
    queryKey: ['shares', group],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/scheduling/shares', { params: { query: { scaling_group: group } }, signal })),
    enabled: group !== '',
    refetchInterval: 60_000,
  });
}

export function useWhy(id: string | null) {
  return useQuery({
    queryKey: [...keys.session(id ?? ''), 'why'],
    queryFn: ({ signal }) => dataOf(rest.GET('/session/{s}/explain', { params: { path: { s: id ?? '' } }, signal })),
    enabled: id !== null,
  });
}
