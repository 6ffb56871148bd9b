import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';

const sshKey = ['ssh-key'] as const;

export function useSshKey() {
  return useQuery({ queryKey: sshKey, queryFn: ({ signal }) => dataOf(rest.GET('/auth/ssh-keypair', { signal })) });
}

export function useNewSshKey() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: () => dataOf(rest.PATCH('/auth/ssh-keypair', {})),
    onSuccess: () => client.invalidateQueries({ queryKey: sshKey }),
  });
}

export function useChangePassword() {
  return useMutation({
    mutationFn: (body: { old_password: string; new_password: string; new_password2: string }) =>
      rest.POST('/auth/update-password', { body }),
  });
}
