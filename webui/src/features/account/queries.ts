import { keepPreviousData, useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { apiBase, dataOf, rest, send } from '../../api/client';
import { prefix } from '../../api/prefix';

const sshKey = ['ssh-key'] as const;
const totpKey = ['totp'] as const;
const loginSessionsKey = ['login-sessions'] as const;
export const signInPageSize = 10;

/** A login session of the web server. */
export interface LoginSession {
  session_id: string;
  created_at: string;
  expires_at: string;
  address: string;
  /** The User-Agent of the browser or client, as it said. */
  client: string;
  is_current: boolean;
}

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

/** Takes a public key of the person's own, whose private half stays with them. */
export function useUploadSshKey() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (key: string) => dataOf(rest.POST('/auth/ssh-keypair', { body: { pubkey: key, privkey: '' } })),
    onSuccess: () => client.invalidateQueries({ queryKey: sshKey }),
  });
}

export function useChangePassword() {
  return useMutation({
    mutationFn: (body: { old_password: string; new_password: string; new_password2: string }) =>
      rest.POST('/auth/update-password', { body }),
  });
}

export function useTotp() {
  return useQuery({ queryKey: totpKey, queryFn: ({ signal }) => dataOf(rest.GET('/totp', { signal })) });
}

/** Makes a key for an authenticator app, which counts for nothing before it is confirmed. */
export function useBeginTotp() {
  return useMutation({ mutationFn: () => dataOf(rest.POST('/totp', {})), gcTime: 0 });
}

/** Confirms the key; the reply has the recovery codes, which are told this once. */
export function useConfirmTotp() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (otp: string) => dataOf(rest.POST('/totp/verify', { body: { otp } })),
    gcTime: 0,
    onSuccess: () => client.invalidateQueries({ queryKey: totpKey }),
  });
}

/** Replaces the recovery codes, which takes a one-time password. */
export function useNewRecoveryCodes() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (otp: string) => dataOf(rest.POST('/totp/recovery-codes', { body: { otp } })),
    gcTime: 0,
    onSuccess: () => client.invalidateQueries({ queryKey: totpKey }),
  });
}

/** Takes one-time passwords away, by one. It goes in the body, since addresses are logged. */
export function useRemoveTotp() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (otp: string) =>
      send(
        new Request(`${window.location.origin}${apiBase}/totp`, {
          method: 'DELETE',
          headers: { 'Content-Type': 'application/json' },
          body: JSON.stringify({ otp }),
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: totpKey }),
  });
}

export function useSignIns(page: number) {
  return useQuery({
    queryKey: ['sign-ins', page],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/auth/sign-ins', {
          params: { query: { limit: signInPageSize, offset: (page - 1) * signInPageSize } },
          signal,
        }),
      ),
    placeholderData: keepPreviousData,
  });
}

function loginSessionsRequest(method: string, id = '', signal?: AbortSignal): Request {
  const path = id === '' ? '' : `/${encodeURIComponent(id)}`;
  return new Request(`${window.location.origin}${prefix}server/login-sessions${path}`, {
    method,
    signal: signal ?? null,
  });
}

export function useLoginSessions() {
  return useQuery({
    queryKey: loginSessionsKey,
    queryFn: async ({ signal }) => {
      const reply = (await (await send(loginSessionsRequest('GET', '', signal))).json()) as { items: LoginSession[] };
      return reply.items;
    },
  });
}

export function useEndLoginSession() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (id: string) => send(loginSessionsRequest('DELETE', id)),
    // One that has ended meanwhile is gone from the list too.
    onSettled: () => client.invalidateQueries({ queryKey: loginSessionsKey }),
  });
}

/** Gives the keypair another secret, which is told this once. All login sessions end with the old one. */
export function useRotateKeypair() {
  return useMutation({ mutationFn: () => dataOf(rest.POST('/auth/keypair/rotate', {})), gcTime: 0 });
}

const scriptKey = ['bootstrap-script'] as const;

export function useBootstrapScript() {
  return useQuery({
    queryKey: scriptKey,
    queryFn: async ({ signal }) => (await dataOf(rest.GET('/user-config/bootstrap-script', { signal }))) as string,
  });
}

export function useSetBootstrapScript() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (script: string) => rest.POST('/user-config/bootstrap-script', { body: { script } }),
    onSettled: () => client.invalidateQueries({ queryKey: scriptKey }),
  });
}
