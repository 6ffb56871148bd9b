import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import type { components } from '../../api/generated/rest';
import { keys } from '../../api/keys';
import { usePollInterval } from '../../api/useLive';
import type { Tone } from '../../components/StatusBadge';

export type SessionArray = components['schemas']['ArrayReply'];

export const arraysPageSize = 20;
/** They begin as the keys of sessions, whose events make arrays out of date. */
const arraysKey = [...keys.sessions, 'arrays'] as const;

/** A page of the arrays of the person, newest first. */
export function useArrays(page: number, isLive: boolean) {
  return useQuery({
    queryKey: [...arraysKey, page, isLive],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/arrays', {
          params: {
            query: { limit: arraysPageSize, offset: (page - 1) * arraysPageSize, ...(isLive ? { live: true } : {}) },
          },
          signal,
        }),
      ),
    refetchInterval: usePollInterval(),
  });
}

function useChange<T, R>(mutationFn: (input: T) => Promise<R>) {
  const client = useQueryClient();
  return useMutation({ mutationFn, onSettled: () => client.invalidateQueries({ queryKey: keys.sessions }) });
}

/** Ends the elements that live. */
export const useCancelArray = () =>
  useChange(({ id, forced }: { id: string; forced: boolean }) =>
    dataOf(rest.DELETE('/arrays/{a}', { params: { path: { a: id }, query: forced ? { forced: true } : {} } })),
  );

/** Enqueues the elements again that have ended without success. */
export const useRetryArray = () =>
  useChange((id: string) => dataOf(rest.POST('/arrays/{a}/retry', { params: { path: { a: id } } })));

const tones: Record<string, Tone> = { PENDING: 'wait', RUNNING: 'busy', SUCCESS: 'good', FAILURE: 'bad' };
export const arrayToneOf = (status: string): Tone => tones[status] ?? 'idle';

export const hasEnded = (array: SessionArray): boolean => array.status === 'SUCCESS' || array.status === 'FAILURE';

/** How many elements have not succeeded, of those that count as ended. */
export function failedOf({ counts }: SessionArray): number {
  return ['FAILURE', 'ERROR', 'CANCELLED', 'TERMINATED'].reduce((sum, status) => sum + (counts[status] ?? 0), 0);
}
