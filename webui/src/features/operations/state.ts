import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import { keys } from '../../api/keys';

export function useManagerStatus() {
  return useQuery({
    queryKey: keys.managerStatus,
    queryFn: ({ signal }) => dataOf(rest.GET('/manager/status', { signal })),
  });
}

export function useAnnouncement() {
  return useQuery({
    queryKey: keys.announcement,
    queryFn: ({ signal }) => dataOf(rest.GET('/manager/announcement', { signal })),
  });
}

export function useSetStatus() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: { status: 'running' | 'frozen'; force_kill: boolean }) => rest.PUT('/manager/status', { body }),
    onSuccess: () => client.invalidateQueries({ queryKey: keys.managerStatus }),
  });
}

export function useSetAnnouncement() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: { enabled: boolean; message: string }) => rest.POST('/manager/announcement', { body }),
    onSuccess: () => client.invalidateQueries({ queryKey: keys.announcement }),
  });
}
