import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { filterOf } from '../../api/filters';
import { graphql, mutate, query } from '../../api/graphql';
import { useMe, useRole } from '../../api/me';
import { usePages } from '../../components/usePages';

export const projectsQuery = graphql(`
  query {
    groups { id name domain_name description is_active type }
  }
`);

export const ownProjectsQuery = graphql(`
  query {
    groups { id name domain_name description is_active type admins }
  }
`);

export const projectQuery = graphql(`
  query ($id: UUID!) {
    group(id: $id) { id name domain_name description is_active type admins }
  }
`);

export const membersQuery = graphql(`
  query ($id: UUID!, $limit: Int!, $offset: Int!, $filter: String, $order: String) {
    group_member_list(group_id: $id, limit: $limit, offset: $offset, filter: $filter, order: $order) {
      total_count
      items { uuid email full_name status is_admin }
    }
  }
`);

export const lossesQuery = graphql(`
  query ($id: UUID!, $member: String!) {
    group_member_list(group_id: $id, limit: 1, offset: 0, filter: $member) { items { live_sessions } }
    vfolder_list(group_id: $id, limit: 1, offset: 0) { total_count }
  }
`);

export const changeMembers = graphql(`
  mutation ($id: UUID!, $mode: String!, $uuids: [String], $emails: [String]) {
    modify_group(gid: $id, props: { user_update_mode: $mode, user_uuids: $uuids, user_emails: $emails }) { ok msg }
  }
`);

export interface Project {
  id: string;
  name: string;
  domain: string;
  description: string;
  isActive: boolean;
  /** The user who looks administrates it; undefined where that was not asked for. */
  isMine?: boolean | undefined;
}

interface Row {
  id: string | null;
  name: string | null;
  domain_name: string | null;
  description: string | null;
  is_active: boolean | null;
  admins?: (string | null)[] | null;
}

function projectOf(row: Row, me: string | undefined): Project {
  return {
    id: row.id ?? '',
    name: row.name ?? '',
    domain: row.domain_name ?? '',
    description: row.description ?? '',
    isActive: row.is_active === true,
    isMine: row.admins === undefined ? undefined : me !== undefined && (row.admins ?? []).includes(me),
  };
}

/** The projects that the user sees. Who administrates them is asked for where these are the user's own only. */
export function useProjects() {
  const role = useRole();
  const me = useMe().data?.user?.uuid ?? undefined;
  return useQuery({
    queryKey: ['projects', role, me],
    queryFn: async ({ signal }) => {
      const { groups } = await query(role === 'user' ? ownProjectsQuery : projectsQuery, {}, { signal });
      return (groups ?? []).flatMap((row) => (row === null ? [] : [projectOf(row, me)]));
    },
    enabled: role !== 'user' || me !== undefined,
  });
}

export function useProject(id: string) {
  const me = useMe().data?.user?.uuid ?? undefined;
  return useQuery({
    queryKey: ['project', id, me],
    queryFn: async ({ signal }) => {
      const { group } = await query(projectQuery, { id }, { signal });
      return group ? projectOf(group, me) : null;
    },
    enabled: me !== undefined,
  });
}

export interface Member {
  uuid: string;
  email: string;
  name: string;
  status: string;
  isAdmin: boolean;
}

export function useMembers(id: string, q: string, order: string) {
  return usePages<Member>(['project-members', id, q, order], async (offset, limit, signal) => {
    const { group_member_list: list } = await query(
      membersQuery,
      { id, limit, offset, filter: filterOf('email', q), order },
      { signal },
    );
    const items = (list?.items ?? []).flatMap((item) =>
      item === null
        ? []
        : [
            {
              uuid: item.uuid ?? '',
              email: item.email ?? '',
              name: item.full_name ?? '',
              status: item.status ?? '',
              isAdmin: item.is_admin === true,
            },
          ],
    );
    return { total: list?.total_count ?? 0, items };
  });
}

/** Counts what a member loses with the membership, and what goes on. */
export function useLosses(id: string, uuid: string) {
  return useQuery({
    queryKey: ['project-losses', id, uuid],
    queryFn: async ({ signal }) => {
      const reply = await query(lossesQuery, { id, member: `uuid == "${uuid}"` }, { signal });
      return {
        sessions: reply.group_member_list?.items?.[0]?.live_sessions ?? 0,
        folders: reply.vfolder_list?.total_count ?? 0,
      };
    },
    staleTime: 0,
  });
}

export type Change = 'add' | 'remove' | 'add-admins' | 'remove-admins';

/** Lets people into a project and out of it, and changes who administrates it. */
export function useChangeMembers(id: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: ({ mode, uuids = [], emails = [] }: { mode: Change; uuids?: string[]; emails?: string[] }) =>
      mutate(changeMembers, { id, mode, uuids, emails }),
    onSuccess: () =>
      Promise.all(
        [['project-members', id], ['project', id], ['projects'], ['users']].map((queryKey) =>
          client.invalidateQueries({ queryKey }),
        ),
      ),
  });
}
