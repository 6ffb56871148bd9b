import { queryOptions, useInfiniteQuery, useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import { filterOf } from '../../api/filters';
import type { components } from '../../api/generated/rest';
import { graphql, query } from '../../api/graphql';
import { useMe, useRole } from '../../api/me';
import { asProblem } from '../../api/problems';
import { usePages } from '../../components/usePages';
import {
  type FolderView,
  isBeingFilled,
  joinPath,
  type Permission,
  type Quota,
  quotaOf,
  scopesOf,
  ticketUrl,
} from './rules';

export const folderKeys = {
  all: ['folders'] as const,
  list: (view: FolderView) => ['folders', 'list', view] as const,
  one: (id: string) => ['folders', 'one', id] as const,
  files: (id: string, path: string) => ['folders', 'files', id, path] as const,
  invitations: ['folders', 'invitations'] as const,
};

const filesPerPage = 100;

const listOptions = (view: Exclude<FolderView, 'all'>) =>
  queryOptions({
    queryKey: folderKeys.list(view),
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/folders', {
          params: { query: { trash: view === 'trash' } },
          signal,
        }),
      ),
    // The files of a folder that is deleted for ever go in the background, and then it.
    refetchInterval: ({ state }) => (state.data?.some(({ status }) => status === 'delete-ongoing') ? 2_000 : false),
  });

/** The folders that the person may use, or those in their trash. */
export function useFolders(view: Exclude<FolderView, 'all'>) {
  return useQuery(listOptions(view));
}

export const foldersQuery = graphql(`
  query ($limit: Int!, $offset: Int!, $filter: String, $order: String) {
    vfolder_list(limit: $limit, offset: $offset, filter: $filter, order: $order) {
      total_count
      items { id name host user_email group_name creator ownership_type status cur_size created_at }
    }
  }
`);

/** The folders of all users and projects, by pages of the server; `q` is a part of a name, or a filter. */
export function useAllFolders(q: string, sort: string) {
  return usePages([...folderKeys.all, 'everybody', q, sort], async (offset, limit, signal) => {
    const { vfolder_list: list } = await query(
      foldersQuery,
      { limit, offset, filter: filterOf('name', q), order: `${sort},id` },
      { signal },
    );
    return { total: list?.total_count ?? 0, items: (list?.items ?? []).filter((each) => each !== null) };
  });
}

export type Folder = NonNullable<ReturnType<typeof useFolders>['data']>[number];

/** Returns whether a folder of somebody else is shared with the person; superadmins open others too. */
export function useMayLeave(id: string, isOfOther: boolean): boolean {
  const { data } = useQuery({ ...listOptions('live'), enabled: isOfOther });
  return isOfOther && (data?.some((folder) => folder.id === id) ?? false);
}

export const folderOptions = (id: string) =>
  queryOptions({
    queryKey: folderKeys.one(id),
    queryFn: ({ signal }) => dataOf(rest.GET('/folders/{f}', { params: { path: { f: id } }, signal })),
    refetchInterval: ({ state }) => (isBeingFilled(state.data?.status) ? 5_000 : false),
  });

/** The files of a directory, by pages of the server. */
export function useFiles(id: string, path: string) {
  return useInfiniteQuery({
    queryKey: folderKeys.files(id, path),
    initialPageParam: null as string | null,
    queryFn: ({ pageParam, signal }) =>
      dataOf(
        rest.GET('/folders/{f}/files', {
          params: {
            path: { f: id },
            query: { path: path || '.', limit: filesPerPage, ...(pageParam === null ? {} : { cursor: pageParam }) },
          },
          signal,
        }),
      ),
    getNextPageParam: (page) => page.cursor ?? null,
  });
}

const mostPerPage = 10_000;

/** Returns which names are there in a directory, as it is now: the list that is shown may be old, and is of some pages. */
export async function namesPresent(id: string, path: string, names: readonly string[]): Promise<Set<string>> {
  const asked = new Set(names);
  const present = new Set<string>();
  for (let cursor: string | null = null, isFirst = true; isFirst || cursor !== null; isFirst = false) {
    const query = { path: path || '.', limit: mostPerPage, ...(cursor === null ? {} : { cursor }) };
    const page: FilesPage = await dataOf(rest.GET('/folders/{f}/files', { params: { path: { f: id }, query } }));
    for (const { name } of page.items) if (asked.has(name)) present.add(name);
    cursor = present.size < asked.size ? (page.cursor ?? null) : null;
  }
  return present;
}

type FilesPage = NonNullable<ReturnType<typeof useFiles>['data']>['pages'][number];
export type FileEntry = NonNullable<ReturnType<typeof useFiles>['data']>['pages'][number]['items'][number];

/** The storage hosts of the person, or of a project. */
export function useHosts(project = '') {
  return useQuery({
    queryKey: [...folderKeys.all, 'hosts', project],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/folders/_/hosts', { params: { query: project === '' ? {} : { group_id: project } }, signal })),
  });
}

export const allProjectsQuery = graphql(`
  query { groups { id name domain_name is_active } }
`);

export const administeredProjectsQuery = graphql(`
  query { groups { id name domain_name is_active admins } }
`);

/** The projects for which the person may make folders: all that administrators see, and those that users administrate. */
export function useFolderProjects() {
  const isUser = useRole() === 'user';
  const me = useMe().data?.user?.uuid ?? '';
  return useQuery({
    queryKey: [...folderKeys.all, 'projects', isUser, me],
    queryFn: async ({ signal }) => {
      if (!isUser) return present((await query(allProjectsQuery, {}, { signal })).groups);
      const groups = present((await query(administeredProjectsQuery, {}, { signal })).groups);
      return groups.filter(({ admins }) => admins?.includes(me));
    },
    enabled: !isUser || me !== '',
    select: (groups) =>
      groups
        .filter(({ is_active }) => is_active === true)
        .map(({ id, name, domain_name }) => ({ id: id ?? '', name: name ?? '', domain: domain_name ?? '' })),
  });
}

function present<T>(rows: readonly (T | null)[] | null): T[] {
  return (rows ?? []).filter((row): row is T => row !== null);
}

export const quotaScopeQuery = graphql(`
  query ($host: String!, $scope: String!) {
    quota_scope(storage_host_name: $host, quota_scope_id: $scope) {
      details { usage_bytes hard_limit_bytes enforcement }
    }
  }
`);

/** What the person and their projects keep on each of these storage hosts, and what they may. */
export function useQuotas(hosts: readonly string[]) {
  const user = useMe().data?.user;
  return useQuery({
    queryKey: [...folderKeys.all, 'quotas', hosts, user?.uuid],
    queryFn: ({ signal }) =>
      Promise.all(
        hosts.flatMap((host) =>
          scopesOf(user).map(async ({ scope, owner }): Promise<Quota> => {
            try {
              const details = (await query(quotaScopeQuery, { host, scope }, { signal })).quota_scope?.details;
              return quotaOf(host, scope, owner, details);
            } catch (error) {
              // A host that is away hides none of the others.
              signal.throwIfAborted();
              return { ...quotaOf(host, scope, owner, null), problem: asProblem(error).message };
            }
          }),
        ),
      ),
    enabled: user !== undefined,
  });
}

/** What the owner of a folder keeps on its storage host. */
export function useFolderQuota(id: string, host: string) {
  return useQuery({
    queryKey: [...folderKeys.one(id), 'quota'],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/folders/_/quota', { params: { query: { id, folder_host: host } }, signal })),
  });
}

export function useInvitations() {
  return useQuery({
    queryKey: folderKeys.invitations,
    queryFn: async ({ signal }) => (await dataOf(rest.GET('/folders/invitations/list', { signal }))).invitations,
  });
}

/** The invitations of the person that nobody has answered. */
export function useSentInvitations() {
  return useQuery({
    queryKey: [...folderKeys.all, 'sent'],
    queryFn: async ({ signal }) => (await dataOf(rest.GET('/folders/invitations/list-sent', { signal }))).invitations,
  });
}

export type Invitation = NonNullable<ReturnType<typeof useSentInvitations>['data']>[number];

/** With whom all folders of the person are shared. */
export function useOwnShares() {
  return useQuery({
    queryKey: [...folderKeys.all, 'shares'],
    queryFn: async ({ signal }) => (await dataOf(rest.GET('/folders/_/shared', { signal }))).shared,
  });
}

export type Share = NonNullable<ReturnType<typeof useOwnShares>['data']>[number];

/** Those whom a folder is shared with. */
export function useShares(id: string) {
  return useQuery({
    queryKey: [...folderKeys.one(id), 'shares'],
    queryFn: async ({ signal }) =>
      (await dataOf(rest.GET('/folders/_/shared', { params: { query: { vfolder_id: id } }, signal }))).shared,
  });
}

/** Returns an address at which a file, or a directory as a zip, is fetched by whoever has it. */
export async function downloadUrl(id: string, path: string, isDirectory: boolean): Promise<string> {
  const body = { path, ...(isDirectory ? { archive: true } : {}) };
  const ticket = await dataOf(rest.POST('/folders/{f}/request-download', { params: { path: { f: id } }, body }));
  return ticketUrl(ticket.url, ticket.token, isDirectory ? { archive: 'true' } : {});
}

export async function requestUploads(id: string, files: readonly { path: string; size: number }[]) {
  const body = { files: [...files] };
  return (await dataOf(rest.POST('/folders/{f}/request-uploads', { params: { path: { f: id } }, body }))).tickets;
}

function useChange<T, R>(mutationFn: (input: T) => Promise<R>, refetchType: 'active' | 'none' = 'active') {
  const client = useQueryClient();
  return useMutation({
    mutationFn,
    onSettled: () => client.invalidateQueries({ queryKey: folderKeys.all, refetchType }),
  });
}

export type NewFolder = components['schemas']['CreateFolderBody'];

export const useCreateFolder = () => useChange((body: NewFolder) => dataOf(rest.POST('/folders', { body })));

export const useTrashFolder = () =>
  useChange((id: string) => dataOf(rest.DELETE('/folders', { params: { query: { id } } })), 'none'); // the page of the folder is left: nothing about it is asked again

export const useRestoreFolder = () =>
  useChange((id: string) => dataOf(rest.POST('/folders/restore-from-trash-bin', { body: { id } })));

export const usePurgeFolder = () =>
  useChange((id: string) => dataOf(rest.POST('/folders/delete-from-trash-bin', { body: { id } })));

export const useLeaveFolder = () =>
  useChange((id: string) => dataOf(rest.POST('/folders/{f}/leave', { params: { path: { f: id } }, body: {} })), 'none');

export const useRenameFolder = () =>
  useChange(({ id, name }: { id: string; name: string }) =>
    dataOf(rest.POST('/folders/{f}/rename', { params: { path: { f: id } }, body: { new_name: name } })),
  );

/** Says whether a folder may be copied by those who use it, its owner among them. */
export const useSetCloneable = () =>
  useChange(({ id, isCloneable }: { id: string; isCloneable: boolean }) =>
    dataOf(rest.POST('/folders/{f}/update-options', { params: { path: { f: id } }, body: { cloneable: isCloneable } })),
  );

export const useCloneFolder = () =>
  useChange(({ id, name }: { id: string; name: string }) =>
    dataOf(
      rest.POST('/folders/{f}/clone', { params: { path: { f: id } }, body: { target_name: name, target_host: null } }),
    ),
  );

interface Sharing {
  id: string;
  emails: string[];
  permission: Permission;
}

/** Invites people to the folder of a user, and returns whom. */
export const useInvite = () =>
  useChange(
    async ({ id, emails, permission }: Sharing) =>
      (
        await dataOf(
          rest.POST('/folders/{f}/invite', { params: { path: { f: id } }, body: { emails, perm: permission } }),
        )
      ).invited_ids,
  );

/** Says what single members of a project may do with its folder, and returns the addresses of those who are members. */
export const useShareWithMembers = () =>
  useChange(
    async ({ id, emails, permission }: Sharing) =>
      (await dataOf(rest.POST('/folders/{f}/share', { params: { path: { f: id } }, body: { emails, permission } })))
        .shared_emails,
  );

/** Ends what was said for single members, so that they may do what all members may. */
export const useUnshareWithMembers = () =>
  useChange(({ id, email }: { id: string; email: string }) =>
    dataOf(rest.DELETE('/folders/{f}/unshare', { params: { path: { f: id }, query: { emails: [email] } } })),
  );

export const useSetShare = () =>
  useChange(({ id, user, permission }: { id: string; user: string; permission: Permission | null }) =>
    dataOf(rest.POST('/folders/_/shared', { body: { vfolder: id, user, perm: permission } })),
  );

export const useAnswerInvitation = () =>
  useChange(({ id, isAccepted }: { id: string; isAccepted: boolean }) =>
    isAccepted
      ? dataOf(rest.POST('/folders/invitations/accept', { body: { inv_id: id } }))
      : dataOf(rest.DELETE('/folders/invitations/delete', { params: { query: { inv_id: id } } })),
  );

/** Changes what an invitation offers. */
export const useAmendInvitation = () =>
  useChange(({ id, permission }: { id: string; permission: Permission }) =>
    dataOf(
      rest.POST('/folders/invitations/update/{inv_id}', {
        params: { path: { inv_id: id } },
        body: { perm: permission },
      }),
    ),
  );

export const useWithdrawInvitation = () =>
  useChange((id: string) => dataOf(rest.DELETE('/folders/invitations/delete', { params: { query: { inv_id: id } } })));

/** Gives the folder of a user to another user. */
export const useChangeOwner = () =>
  useChange(({ id, email }: { id: string; email: string }) =>
    dataOf(rest.POST('/folders/_/change-ownership', { body: { vfolder: id, user_email: email } })),
  );

export const useMakeDirectory = () =>
  useChange(({ id, path }: { id: string; path: string }) =>
    dataOf(rest.POST('/folders/{f}/mkdir', { params: { path: { f: id } }, body: { path: joinPath(path) } })),
  );

export const useDeleteFiles = () =>
  useChange(({ id, files }: { id: string; files: string[] }) =>
    dataOf(rest.POST('/folders/{f}/delete-files', { params: { path: { f: id } }, body: { files, recursive: true } })),
  );

/** Gives a file or directory another path in its folder. */
export const useMoveFile = () =>
  useChange(({ id, src, dst }: { id: string; src: string; dst: string }) =>
    dataOf(rest.POST('/folders/{f}/move-file', { params: { path: { f: id } }, body: { src, dst } })),
  );
