import { keepPreviousData, useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import { keys } from '../../api/keys';
import { usePollInterval } from '../../api/useLive';

import type { Claim, NewClaim } from './rules';

export const pageSize = 25;
const idleMs = 60_000;

// Claims follow their sessions, so events of sessions mark them as out of date.
const all = [...keys.sessions, 'claims'] as const;

/** How often claims are asked for again: also while events come, since none tells that an idle claim has ended. */
const useInterval = (): number => usePollInterval() || idleMs;

export function useClaims(page: number) {
  return useQuery({
    queryKey: [...all, 'list', page],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/claims', { params: { query: { limit: pageSize, offset: (page - 1) * pageSize } }, signal })),
    placeholderData: keepPreviousData,
    refetchInterval: useInterval(),
  });
}

export function useClaim(id: string) {
  return useQuery({
    queryKey: [...all, 'one', id],
    queryFn: ({ signal }) => dataOf(rest.GET('/claims/{c}', { params: { path: { c: id } }, signal })),
    refetchInterval: useInterval(),
    enabled: ({ state }) => state.data?.status !== 'DELETED', // the server has it no more
  });
}

/** Changes a claim; the reply is the claim as it is from then on. */
function useChange<T>(mutationFn: (input: T) => Promise<Claim>) {
  const client = useQueryClient();
  return useMutation({
    mutationFn,
    onSuccess: (claim) => client.setQueryData<Claim>([...all, 'one', claim.id], claim),
    onSettled: () => client.invalidateQueries({ queryKey: keys.sessions }),
  });
}

export const useCreateClaim = () => useChange((body: NewClaim) => dataOf(rest.POST('/claims', { body })));

/** Returns the devices of a claim; its next session allocates anew. */
export const useReleaseClaim = () =>
  useChange((id: string) => dataOf(rest.POST('/claims/{c}/release', { params: { path: { c: id } } })));

/** Deletes a claim, with the end of the last session that names it. */
export const useDeleteClaim = () =>
  useChange((id: string) => dataOf(rest.DELETE('/claims/{c}', { params: { path: { c: id } } })));
