import { queryOptions, useQuery } from '@tanstack/react-query';
import { graphql, query } from './graphql';
import { keys } from './keys';
import { checkLogin } from './login';

export const meQuery = graphql(`
  query {
    user { uuid email full_name role domain_name groups { id name } resource_policy main_access_key need_password_change }
    keypair { access_key is_admin resource_policy concurrency_used created_at last_used }
  }
`);

export const loginQuery = queryOptions({
  queryKey: keys.login,
  queryFn: checkLogin,
  staleTime: Number.POSITIVE_INFINITY,
});

/** The user who has logged in, with their groups and keypair. */
export const meOptions = queryOptions({
  queryKey: keys.me,
  queryFn: ({ signal }) => query(meQuery, {}, { signal }),
  staleTime: 5 * 60_000,
});

export function useMe() {
  return useQuery(meOptions);
}

export type Role = 'user' | 'admin' | 'superadmin' | 'monitor';

/** Returns the role by which pages are shown; what a person may do is decided by the manager. */
export function useRole(): Role {
  const { data } = useQuery(loginQuery);
  const role = data?.role ?? 'user';
  return role === 'admin' || role === 'superadmin' || role === 'monitor' ? role : 'user';
}
