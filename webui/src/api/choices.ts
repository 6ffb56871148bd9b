import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { dataOf, rest } from './client';
import { graphql, query } from './graphql';

/** The resource groups that a project may use. */
export function useResourceGroups(project: string) {
  return useQuery({
    queryKey: ['resource-groups', project],
    queryFn: async ({ signal }) =>
      (await dataOf(rest.GET('/scaling-groups', { params: { query: { group: project } }, signal }))).scaling_groups.map(
        (group) => group.name,
      ),
    enabled: project !== '',
    staleTime: 60_000,
  });
}

/** The slots that the agents of a resource group have now. */
export function useGroupSlots(group: string) {
  return useQuery({
    queryKey: ['slot-details', group],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/config/resource-slots/details', { params: { query: { sgroup: group } }, signal })),
    enabled: group !== '',
    placeholderData: keepPreviousData,
    staleTime: 60_000,
  });
}

export const groupNamesQuery = graphql(`
  query { scaling_groups { name is_active scheduler } }
`);

/** The names of all resource groups, for administrators. */
export function useGroupNames() {
  return useQuery({
    queryKey: ['resource-groups', 'names'],
    queryFn: async ({ signal }) =>
      ((await query(groupNamesQuery, {}, { signal })).scaling_groups ?? []).flatMap((group) => group?.name ?? []),
    staleTime: 60_000,
  });
}

/** The folders that the person may mount. */
export function useMountableFolders() {
  return useQuery({
    queryKey: ['folders', 'launch'],
    queryFn: async ({ signal }) => (await dataOf(rest.GET('/folders', { signal }))) as { id: string; name: string }[],
    staleTime: 30_000,
  });
}
