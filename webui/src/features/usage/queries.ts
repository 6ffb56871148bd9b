import { useQuery } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import type { TokenUse } from '../../components/TokenUseTable';
import { compact } from './projects';

export type Scope = 'own' | 'all';

/** What sessions held in each quarter of an hour of the last 30 days. */
export function useTimeline(scope: Scope) {
  return useQuery({
    queryKey: ['usage', 'timeline', scope],
    queryFn: ({ signal }) =>
      dataOf(
        scope === 'own'
          ? rest.GET('/resource/stats/user/month', { signal })
          : rest.GET('/resource/stats/admin/month', { signal }),
      ),
    staleTime: 5 * 60_000,
  });
}

/** The use of each project that the person sees in a month, in UTC. */
export function useMonthOfProjects(month: string) {
  return useQuery({
    queryKey: ['usage', 'projects', month],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/resource/usage/month', { params: { query: { month: compact(month) } }, signal })),
    staleTime: 60_000,
  });
}

/** The use of a project between two days, both included, in UTC; without an id if there is none. */
export function usePeriodOfProject(project: string, from: string, to: string) {
  return useQuery({
    queryKey: ['usage', 'projects', project, from, to],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/resource/usage/period', {
          params: { query: { group_id: project, start_date: compact(from), end_date: compact(to) } },
          signal,
        }),
      ),
    staleTime: 60_000,
  });
}

/** What tokens used in the last 30 days at each model service that the person sees. */
export function useModelUse() {
  return useQuery({
    queryKey: ['usage', 'models'],
    queryFn: ({ signal }): Promise<TokenUse> =>
      dataOf(rest.GET('/services/_/usage', { params: { query: { by: 'endpoint' } }, signal })),
    staleTime: 60_000,
  });
}
