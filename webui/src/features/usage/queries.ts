import { useQuery } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import type { TokenUse } from '../../components/TokenUseTable';

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

/** What tokens used in the last 30 days at each model service that the person sees. */
export function useModelUse() {
  return useQuery({
    queryKey: ['usage', 'models'],
    queryFn: ({ signal }): Promise<TokenUse> =>
      dataOf(rest.GET('/services/_/usage', { params: { query: { by: 'endpoint' } }, signal })),
    staleTime: 60_000,
  });
}
