import { useQuery } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';

/** The mounts under the volumes of each storage proxy, by its name. */
export function useMounts() {
  return useQuery({
    queryKey: ['storage-mounts'],
    queryFn: async ({ signal }) => {
      const reply = await dataOf(rest.GET('/folders/_/mounts', { signal }));
      return Object.entries(reply.storage_proxy).map(([proxy, { mounts }]) => [proxy, mounts] as const);
    },
  });
}
