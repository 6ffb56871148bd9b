import { keepPreviousData, useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';

/** The keys below a prefix of the shared configuration, as nested objects; null where there are none. */
export function useConfiguration(prefix: string) {
  return useQuery({
    queryKey: ['configuration', prefix],
    queryFn: async ({ signal }) =>
      (await dataOf(rest.POST('/config/get', { body: { key: prefix, prefix: true }, signal }))).result as unknown,
    placeholderData: keepPreviousData,
  });
}

export function useSetConfiguration() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: { key: string; value: string }) => rest.POST('/config/set', { body }),
    gcTime: 0, // values may be secrets
    onSuccess: () => client.invalidateQueries({ queryKey: ['configuration'] }),
  });
}

export function useDeleteConfiguration() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: { key: string; prefix: boolean }) => rest.POST('/config/delete', { body }),
    onSuccess: () => client.invalidateQueries({ queryKey: ['configuration'] }),
  });
}

// ---- slots that kernels hold ----

export function useRecount() {
  return useMutation({ mutationFn: () => dataOf(rest.POST('/resource/recalculate-usage')) });
}
