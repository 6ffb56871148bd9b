import { useQuery } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import { keys } from '../../api/keys';
import { usePollInterval } from '../../api/useLive';

/** What the person may still use: in a project, and free in its resource groups. */
export function useQuota(group: string) {
  return useQuery({
    queryKey: keys.quota(group),
    queryFn: ({ signal }) => dataOf(rest.POST('/resource/check-presets', { body: { group }, signal })),
    enabled: group !== '',
    refetchInterval: usePollInterval(),
  });
}
