import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { filterOf } from '../../api/filters';
import { graphql, mutate, query } from '../../api/graphql';
import { usePages } from '../../components/usePages';

export const usersQuery = graphql(`
  query ($limit: Int!, $offset: Int!, $filter: String, $order: String) {
    user_list(limit: $limit, offset: $offset, filter: $filter, order: $order) {
      total_count
      items { uuid email full_name role status domain_name created_at main_access_key groups { id name } }
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
  query { groups { id name description domain_name is_active type resource_policy total_resource_slots created_at } }
`);

export const setUserStatus = graphql(`
  mutation ($email: String!, $status: String!) {
    modify_user(email: $email, props: { status: $status }) { ok msg }
  }
`);

export const domainsQuery = graphql(`
  query { domains { name description is_active total_resource_slots created_at } }
`);

export const policiesQuery = graphql(`
  query {
    keypair_resource_policies {
      name default_for_unspecified total_resource_slots max_concurrent_sessions max_containers_per_session
      max_pending_session_count max_session_lifetime idle_timeout
    }
    user_resource_policies { name max_vfolder_count max_quota_scope_size }
    project_resource_policies { name max_vfolder_count max_quota_scope_size }
  }
`);

export const resourceGroupsQuery = graphql(`
  query { scaling_groups { name description is_active is_public scheduler driver wsproxy_addr created_at } }
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
      { limit, offset, filter: filterOf('user_id', q), order: `${sort},access_key` },
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

export function useResourceGroups() {
  return useQuery({
    queryKey: ['resource-groups'],
    queryFn: async ({ signal }) => present((await query(resourceGroupsQuery, {}, { signal })).scaling_groups),
  });
}

/** Makes a user active or inactive; an inactive one cannot sign in. */
export function useSetUserStatus() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (variables: { email: string; status: 'active' | 'inactive' }) => mutate(setUserStatus, variables),
    onSuccess: () => client.invalidateQueries({ queryKey: ['users'] }),
  });
}
