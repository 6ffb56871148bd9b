import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { filterOf } from '../../api/filters';
import { graphql, mutate, query } from '../../api/graphql';
import { asProblem } from '../../api/problems';
import { usePages } from '../../components/usePages';

export const usersQuery = graphql(`
  query ($limit: Int!, $offset: Int!, $filter: String, $order: String) {
    user_list(limit: $limit, offset: $offset, filter: $filter, order: $order) {
      total_count
      items { uuid email full_name role status domain_name created_at totp_activated groups { id name } }
    }
  }
`);

export const keypairsQuery = graphql(`
  query ($limit: Int!, $offset: Int!, $filter: String, $order: String) {
    keypair_list(limit: $limit, offset: $offset, filter: $filter, order: $order) {
      total_count
      items { access_key user_id is_active is_admin resource_policy concurrency_used rate_limit created_at last_used }
    }
  }
`);

export const groupsQuery = graphql(`
  query {
    groups {
      id name description domain_name is_active type resource_policy total_resource_slots allowed_vfolder_hosts
      created_at
    }
  }
`);

export const setUserStatus = graphql(`
  mutation ($email: String!, $status: String!) {
    modify_user(email: $email, props: { status: $status }) { ok msg }
  }
`);

export const createUser = graphql(`
  mutation ($email: String!, $props: UserInput!) {
    create_user(email: $email, props: $props) { ok msg user { uuid email main_access_key } }
  }
`);

export const resetTotp = graphql(`
  mutation ($email: String!) {
    modify_user(email: $email, props: { totp_activated: false }) { ok msg }
  }
`);

export const purgeUser = graphql(`
  mutation ($email: String!, $withShared: Boolean!) {
    purge_user(email: $email, props: { purge_shared_vfolders: $withShared }) { ok msg }
  }
`);

export const belongingsQuery = graphql(`
  query ($ofSessions: String!, $ofFolders: String!, $ofKeypairs: String!) {
    compute_session_list(limit: 1, offset: 0, filter: $ofSessions) { total_count }
    vfolder_list(limit: 1, offset: 0, filter: $ofFolders) { total_count }
    keypair_list(limit: 1, offset: 0, filter: $ofKeypairs) { total_count }
  }
`);

export const createKeypair = graphql(`
  mutation ($email: String!) {
    create_keypair(user_id: $email, props: {}) { ok msg keypair { access_key secret_key } }
  }
`);

export const rotateKeypair = graphql(`
  mutation ($accessKey: String!) {
    rotate_keypair(access_key: $accessKey) { ok msg keypair { access_key secret_key } }
  }
`);

export const setKeypairPolicy = graphql(`
  mutation ($accessKey: String!, $policy: String!) {
    modify_keypair(access_key: $accessKey, props: { resource_policy: $policy }) { ok msg }
  }
`);

export const setKeypairActive = graphql(`
  mutation ($accessKey: String!, $isActive: Boolean!) {
    modify_keypair(access_key: $accessKey, props: { is_active: $isActive }) { ok msg }
  }
`);

export const domainsQuery = graphql(`
  query {
    domains {
      name description is_active total_resource_slots allowed_vfolder_hosts allowed_docker_registries created_at
    }
  }
`);

export const policiesQuery = graphql(`
  query {
    keypair_resource_policies {
      name default_for_unspecified total_resource_slots max_concurrent_sessions max_containers_per_session
      max_pending_session_count max_pending_session_resource_slots max_session_lifetime idle_timeout
      max_vfolder_count max_vfolder_size max_claims max_claim_idle_time allowed_vfolder_hosts
    }
    user_resource_policies { name max_vfolder_count max_quota_scope_size }
    project_resource_policies { name max_vfolder_count max_quota_scope_size }
  }
`);

export const presetsQuery = graphql(`
  query { resource_presets { name resource_slots shared_memory device_requests } }
`);

export const resourceGroupsQuery = graphql(`
  query {
    scaling_groups {
      name description is_active is_public scheduler scheduler_opts driver driver_opts use_host_network wsproxy_addr
      created_at
    }
  }
`);

function present<T>(items: readonly (T | null)[] | null | undefined): T[] {
  return (items ?? []).filter((item): item is T => item !== null);
}

export function useUserPages(q: string, sort: string) {
  return usePages(['users', q, sort], async (offset, limit, signal) => {
    const { user_list: list } = await query(
      usersQuery,
      { limit, offset, filter: filterOf('email', q), order: `${sort},uuid` },
      { signal },
    );
    return { total: list?.total_count ?? 0, items: present(list?.items) };
  });
}

export function useKeypairPages(q: string, sort: string) {
  return usePages(['keypairs', q, sort], async (offset, limit, signal) => {
    const { keypair_list: list } = await query(
      keypairsQuery,
      { limit, offset, filter: filterOf('email', q), order: `${sort},access_key` },
      { signal },
    );
    return { total: list?.total_count ?? 0, items: present(list?.items) };
  });
}

export function useGroups() {
  return useQuery({
    queryKey: ['groups'],
    queryFn: async ({ signal }) => present((await query(groupsQuery, {}, { signal })).groups),
  });
}

export function useDomains() {
  return useQuery({
    queryKey: ['domains'],
    queryFn: async ({ signal }) => present((await query(domainsQuery, {}, { signal })).domains),
  });
}

export function usePolicies() {
  return useQuery({
    queryKey: ['policies'],
    queryFn: async ({ signal }) => {
      const data = await query(policiesQuery, {}, { signal });
      return {
        keypair: present(data.keypair_resource_policies),
        user: present(data.user_resource_policies),
        project: present(data.project_resource_policies),
      };
    },
  });
}

export function usePresets() {
  return useQuery({
    queryKey: ['presets'],
    queryFn: async ({ signal }) => present((await query(presetsQuery, {}, { signal })).resource_presets),
  });
}

export function useResourceGroups() {
  return useQuery({
    queryKey: ['resource-groups'],
    queryFn: async ({ signal }) => present((await query(resourceGroupsQuery, {}, { signal })).scaling_groups),
  });
}

export type KeypairPolicy = NonNullable<ReturnType<typeof usePolicies>['data']>['keypair'][number];
export type StoragePolicy = NonNullable<ReturnType<typeof usePolicies>['data']>['user'][number];
export type Preset = NonNullable<ReturnType<typeof usePresets>['data']>[number];
export type ResourceGroup = NonNullable<ReturnType<typeof useResourceGroups>['data']>[number];
export type Domain = NonNullable<ReturnType<typeof useDomains>['data']>[number];
export type Project = NonNullable<ReturnType<typeof useGroups>['data']>[number];

/** Makes a user active or inactive; an inactive one cannot sign in. */
export function useSetUserStatus() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (variables: { email: string; status: 'active' | 'inactive' }) => mutate(setUserStatus, variables),
    onSuccess: () => client.invalidateQueries({ queryKey: ['users'] }),
  });
}

/** Gives a keypair another secret, which is in this reply and nowhere else. */
export function useRotateKeypair() {
  return useMutation({
    mutationFn: (accessKey: string) => mutate(rotateKeypair, { accessKey }),
    gcTime: 0,
  });
}

/** What a new user is made of; null is what the manager chooses. */
export interface NewUser {
  email: string;
  full_name: string | null;
  password: string;
  need_password_change: boolean;
  role: string;
  domain_name: string;
  group_ids: string[] | null;
  resource_policy: string | null;
  /** The policy of the first keypair; null leaves what the manager chooses. */
  keypair_policy: string | null;
}

/** Makes a user. The reply tells apart what is refused of the policy of the keypair: the user exists then. */
export function useCreateUser() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: async ({ email, keypair_policy: policy, ...props }: NewUser) => {
      const made = await mutate(createUser, { email, props });
      const accessKey = made.create_user?.user?.main_access_key;
      if (policy === null || !accessKey) return { policyProblem: null };
      return mutate(setKeypairPolicy, { accessKey, policy }).then(
        () => ({ policyProblem: null }),
        (error: unknown) => ({ policyProblem: asProblem(error) }),
      );
    },
    gcTime: 0,
    onSuccess: () => client.invalidateQueries({ queryKey: ['users'] }),
  });
}

/** Takes one-time passwords away from somebody who has lost the device. */
export function useResetTotp() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (email: string) => mutate(resetTotp, { email }),
    onSuccess: () => client.invalidateQueries({ queryKey: ['users'] }),
  });
}

/** Counts what goes with a user. */
export function useBelongings(uuid: string) {
  return useQuery({
    queryKey: ['belongings', uuid],
    queryFn: async ({ signal }) => {
      const ofUser = `user_id == "${uuid}"`;
      const lists = await query(
        belongingsQuery,
        { ofSessions: `${ofUser} & terminated_at is null`, ofFolders: ofUser, ofKeypairs: ofUser },
        { signal },
      );
      return {
        sessions: lists.compute_session_list?.total_count ?? 0,
        folders: lists.vfolder_list?.total_count ?? 0,
        keypairs: lists.keypair_list?.total_count ?? 0,
      };
    },
    staleTime: 0,
  });
}

/** Deletes a user for good. It may be repeated while sessions are still ending. */
export function usePurgeUser() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (variables: { email: string; withShared: boolean }) => mutate(purgeUser, variables),
    onSuccess: () => Promise.all(['users', 'keypairs'].map((name) => client.invalidateQueries({ queryKey: [name] }))),
  });
}

/** Makes a further keypair of a user. The reply has its secret, which is told this once. */
export function useCreateKeypair() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (email: string) => mutate(createKeypair, { email }),
    gcTime: 0,
    onSuccess: () => client.invalidateQueries({ queryKey: ['keypairs'] }),
  });
}

export function useSetKeypairActive() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (variables: { accessKey: string; isActive: boolean }) => mutate(setKeypairActive, variables),
    onSuccess: () => client.invalidateQueries({ queryKey: ['keypairs'] }),
  });
}
