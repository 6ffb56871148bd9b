import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import type { TadaDocumentNode } from 'gql.tada';
import { dataOf, rest } from '../../../api/client';
import { graphql, mutate, query } from '../../../api/graphql';
import { asProblem, type Problem } from '../../../api/problems';
import type { Props } from './fields';

export const createKeypairPolicy = graphql(`
  mutation ($name: String!, $props: CreateKeyPairResourcePolicyInput!) {
    create_keypair_resource_policy(name: $name, props: $props) { ok msg }
  }
`);

export const modifyKeypairPolicy = graphql(`
  mutation ($name: String!, $props: ModifyKeyPairResourcePolicyInput!) {
    modify_keypair_resource_policy(name: $name, props: $props) { ok msg }
  }
`);

export const deleteKeypairPolicy = graphql(`
  mutation ($name: String!) { delete_keypair_resource_policy(name: $name) { ok msg } }
`);

export const createUserPolicy = graphql(`
  mutation ($name: String!, $props: CreateUserResourcePolicyInput!) {
    create_user_resource_policy(name: $name, props: $props) { ok msg }
  }
`);

export const modifyUserPolicy = graphql(`
  mutation ($name: String!, $props: ModifyUserResourcePolicyInput!) {
    modify_user_resource_policy(name: $name, props: $props) { ok msg }
  }
`);

export const deleteUserPolicy = graphql(`
  mutation ($name: String!) { delete_user_resource_policy(name: $name) { ok msg } }
`);

export const createProjectPolicy = graphql(`
  mutation ($name: String!, $props: CreateProjectResourcePolicyInput!) {
    create_project_resource_policy(name: $name, props: $props) { ok msg }
  }
`);

export const modifyProjectPolicy = graphql(`
  mutation ($name: String!, $props: ModifyProjectResourcePolicyInput!) {
    modify_project_resource_policy(name: $name, props: $props) { ok msg }
  }
`);

export const deleteProjectPolicy = graphql(`
  mutation ($name: String!) { delete_project_resource_policy(name: $name) { ok msg } }
`);

export const createPreset = graphql(`
  mutation ($name: String!, $props: CreateResourcePresetInput!) {
    create_resource_preset(name: $name, props: $props) { ok msg }
  }
`);

export const modifyPreset = graphql(`
  mutation ($name: String!, $props: ModifyResourcePresetInput!) {
    modify_resource_preset(name: $name, props: $props) { ok msg }
  }
`);

export const deletePreset = graphql(`
  mutation ($name: String!) { delete_resource_preset(name: $name) { ok msg } }
`);

export const userQuery = graphql(`
  query ($email: String!) {
    user(email: $email) {
      email username full_name description role domain_name need_password_change allowed_client_ip resource_policy
      sudo_session_enabled main_access_key
    }
  }
`);

export const modifyPerson = graphql(`
  mutation ($id: String!, $props: ModifyUserInput!) { modify_user(email: $id, props: $props) { ok msg } }
`);

export const setMainKeypair = graphql(`
  mutation ($email: String!, $accessKey: String!) {
    modify_user(email: $email, props: { main_access_key: $accessKey }) { ok msg }
  }
`);

export const deleteUser = graphql(`
  mutation ($email: String!) { delete_user(email: $email) { ok msg } }
`);

export const keypairQuery = graphql(`
  query ($accessKey: String!) {
    keypair(access_key: $accessKey) {
      access_key is_admin resource_policy rate_limit concurrency_limit allowed_client_ip
    }
  }
`);

export const modifyAccessKey = graphql(`
  mutation ($id: String!, $props: ModifyKeyPairInput!) { modify_keypair(access_key: $id, props: $props) { ok msg } }
`);

export const deleteAccessKey = graphql(`
  mutation ($id: String!) { delete_keypair(access_key: $id) { ok msg } }
`);

export const createResourceGroup = graphql(`
  mutation ($name: String!, $props: CreateScalingGroupInput!) {
    create_scaling_group(name: $name, props: $props) { ok msg }
  }
`);

export const modifyResourceGroup = graphql(`
  mutation ($name: String!, $props: ModifyScalingGroupInput!) {
    modify_scaling_group(name: $name, props: $props) { ok msg }
  }
`);

export const deleteResourceGroup = graphql(`
  mutation ($name: String!) { delete_scaling_group(name: $name) { ok msg } }
`);

export const createDomain = graphql(`
  mutation ($name: String!, $props: DomainInput!) { create_domain(name: $name, props: $props) { ok msg } }
`);

export const modifyDomain = graphql(`
  mutation ($name: String!, $props: ModifyDomainInput!) { modify_domain(name: $name, props: $props) { ok msg } }
`);

export const purgeDomain = graphql(`
  mutation ($name: String!) { purge_domain(name: $name) { ok msg } }
`);

export const createGroup = graphql(`
  mutation ($name: String!, $props: GroupInput!) { create_group(name: $name, props: $props) { ok msg group { id } } }
`);

export const modifyGroup = graphql(`
  mutation ($id: UUID!, $props: ModifyGroupInput!) { modify_group(gid: $id, props: $props) { ok msg } }
`);

export const purgeGroup = graphql(`
  mutation ($id: UUID!) { purge_group(gid: $id) { ok msg } }
`);

export const openToDomain = graphql(`
  query ($id: String!) { scaling_groups_for_domain(domain: $id) { name is_public } scaling_groups { name is_public } }
`);

export const openToGroup = graphql(`
  query ($id: String!) {
    scaling_groups_for_user_group(user_group: $id) { name is_public } scaling_groups { name is_public }
  }
`);

export const openToKeypair = graphql(`
  query ($id: String!) {
    scaling_groups_for_keypair(access_key: $id) { name is_public } scaling_groups { name is_public }
  }
`);

export const openForDomain = graphql(`
  mutation ($id: String!, $resourceGroup: String!) {
    associate_scaling_group_with_domain(domain: $id, scaling_group: $resourceGroup) { ok msg }
  }
`);

export const closeForDomain = graphql(`
  mutation ($id: String!, $resourceGroup: String!) {
    disassociate_scaling_group_with_domain(domain: $id, scaling_group: $resourceGroup) { ok msg }
  }
`);

export const openForGroup = graphql(`
  mutation ($id: UUID!, $resourceGroup: String!) {
    associate_scaling_group_with_user_group(user_group: $id, scaling_group: $resourceGroup) { ok msg }
  }
`);

export const closeForGroup = graphql(`
  mutation ($id: String!, $resourceGroup: String!) {
    disassociate_scaling_group_with_user_group(user_group: $id, scaling_group: $resourceGroup) { ok msg }
  }
`);

export const openForKeypair = graphql(`
  mutation ($id: String!, $resourceGroup: String!) {
    associate_scaling_group_with_keypair(access_key: $id, scaling_group: $resourceGroup) { ok msg }
  }
`);

export const closeForKeypair = graphql(`
  mutation ($id: String!, $resourceGroup: String!) {
    disassociate_scaling_group_with_keypair(access_key: $id, scaling_group: $resourceGroup) { ok msg }
  }
`);

export const hostPermissionsQuery = graphql(`
  query { vfolder_host_permissions { vfolder_host_permission_list } }
`);

/** The field that is no property but associations: the resource groups that are open to a domain, project or keypair. */
export const openGroupsField = 'resource_groups';

export interface Opening {
  add: string[];
  remove: string[];
}

type Send = (variables: Record<string, unknown>) => Promise<unknown>;

/** Sends a mutation whose variables come from a form; a test compares the fields of all forms with the schema. */
function sender<T, V>(document: TadaDocumentNode<T, V>): Send {
  return (variables) => mutate(document, variables as V);
}

interface Changes {
  /** The first part of the keys of the queries that show it. */
  shownBy: string;
  create?: Send;
  modify: Send;
  remove?: Send;
  /** Opens and closes a resource group. */
  open?: Send;
  close?: Send;
}

export const changes = {
  keypair: {
    shownBy: 'policies',
    create: sender(createKeypairPolicy),
    modify: sender(modifyKeypairPolicy),
    remove: sender(deleteKeypairPolicy),
  },
  user: {
    shownBy: 'policies',
    create: sender(createUserPolicy),
    modify: sender(modifyUserPolicy),
    remove: sender(deleteUserPolicy),
  },
  project: {
    shownBy: 'policies',
    create: sender(createProjectPolicy),
    modify: sender(modifyProjectPolicy),
    remove: sender(deleteProjectPolicy),
  },
  preset: {
    shownBy: 'presets',
    create: sender(createPreset),
    modify: sender(modifyPreset),
    remove: sender(deletePreset),
  },
  /** Users and their keypairs are created by dialogs of their own, which tell secrets. */
  person: { shownBy: 'users', modify: sender(modifyPerson) },
  accessKey: {
    shownBy: 'keypairs',
    modify: sender(modifyAccessKey),
    remove: sender(deleteAccessKey),
    open: sender(openForKeypair),
    close: sender(closeForKeypair),
  },
  resourceGroup: {
    shownBy: 'resource-groups',
    create: sender(createResourceGroup),
    modify: sender(modifyResourceGroup),
    remove: sender(deleteResourceGroup),
  },
  domain: {
    shownBy: 'domains',
    create: sender(createDomain),
    modify: sender(modifyDomain),
    remove: sender(purgeDomain),
    open: sender(openForDomain),
    close: sender(closeForDomain),
  },
  group: {
    shownBy: 'groups',
    create: sender(createGroup),
    modify: sender(modifyGroup),
    remove: sender(purgeGroup),
    open: sender(openForGroup),
    close: sender(closeForGroup),
  },
} satisfies Record<string, Changes>;
export type Kind = keyof typeof changes;
/** Kinds whose tables have all that is done with them. */
export type ListedKind = Exclude<Kind, 'person' | 'accessKey'>;

/**
 * Creates (without an id) or modifies an object, and then opens and closes resource groups. The reply has what was refused
 * of the groups: the object is there and changed then.
 */
export function useSave(kind: Kind) {
  const client = useQueryClient();
  const { shownBy, create, modify, open, close }: Changes = changes[kind];
  return useMutation({
    mutationFn: async ({ id, name, props: all }: { id: string | null; name: string; props: Props }) => {
      const { [openGroupsField]: opening, ...props } = all;
      let target = id ?? name;
      if (id === null) {
        const made = (await create?.({ name, props })) as { create_group?: { group?: { id?: string } } } | undefined;
        target = made?.create_group?.group?.id ?? name;
      } else if (Object.keys(props).length > 0) {
        await modify({ id, name: id, props });
      }
      const { add, remove } = (opening ?? { add: [], remove: [] }) as Opening;
      const refused: { resourceGroup: string; problem: Problem }[] = [];
      const changeGroups = async (groups: readonly string[], change: Send | undefined) => {
        for (const resourceGroup of groups) {
          await change?.({ id: target, resourceGroup }).catch((error: unknown) => {
            refused.push({ resourceGroup, problem: asProblem(error) });
          });
        }
      };
      await changeGroups(add, open);
      await changeGroups(remove, close);
      return refused;
    },
    gcTime: 0,
    onSettled: () => client.invalidateQueries({ queryKey: [shownBy] }),
  });
}

export function useRemove(kind: Kind) {
  const client = useQueryClient();
  const { shownBy, remove }: Changes = changes[kind];
  return useMutation({
    mutationFn: async (id: string) => remove?.({ id, name: id }),
    onSuccess: () => client.invalidateQueries({ queryKey: [shownBy] }),
  });
}

/** Lets another keypair stand for a user. */
export function useSetMainKeypair() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (variables: { email: string; accessKey: string }) => mutate(setMainKeypair, variables),
    onSuccess: () => client.invalidateQueries({ queryKey: ['users'] }),
  });
}

/** Deletes a user, whose folders and records stay until a purge. */
export function useDeleteUser() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (email: string) => mutate(deleteUser, { email }),
    onSuccess: () => Promise.all(['users', 'keypairs'].map((name) => client.invalidateQueries({ queryKey: [name] }))),
  });
}

/** Someone as they may be changed. */
export function usePerson(email: string) {
  return useQuery({
    queryKey: ['users', 'one', email],
    queryFn: async ({ signal }) => (await query(userQuery, { email }, { signal })).user ?? null,
    staleTime: 0,
    gcTime: 0,
  });
}

export function useAccessKey(accessKey: string) {
  return useQuery({
    queryKey: ['keypairs', 'one', accessKey],
    queryFn: async ({ signal }) => (await query(keypairQuery, { accessKey }, { signal })).keypair ?? null,
    staleTime: 0,
    gcTime: 0,
  });
}

export type Person = NonNullable<ReturnType<typeof usePerson>['data']>;
export type AccessKey = NonNullable<ReturnType<typeof useAccessKey>['data']>;

/** All storage hosts, and what may be done on one. */
export function useHostChoices() {
  return useQuery({
    queryKey: ['host-choices'],
    queryFn: async ({ signal }) => {
      const [hosts, permissions] = await Promise.all([
        dataOf(rest.GET('/folders/_/all-hosts', { signal })),
        query(hostPermissionsQuery, {}, { signal }),
      ]);
      const names = permissions.vfolder_host_permissions?.vfolder_host_permission_list ?? [];
      return { hosts: hosts.allowed, permissions: names.filter((name) => name !== null) };
    },
    staleTime: 60_000,
  });
}

/** The resource groups that are not open to everybody, and which of them are open to a domain, project or keypair. */
export function useOpenGroups(kind: 'domain' | 'group' | 'accessKey', id: string | null, isNeeded = true) {
  return useQuery({
    queryKey: ['resource-groups', 'open-to', kind, id],
    queryFn: async ({ signal }) => {
      const asked = { id: id ?? '' };
      const document = { domain: openToDomain, group: openToGroup, accessKey: openToKeypair }[kind];
      const { scaling_groups: all, ...reply } = await query(document as typeof openToDomain, asked, { signal });
      const [open] = Object.values(reply);
      const closedNames = (groups: typeof all) =>
        (groups ?? []).flatMap((group) => (group?.name && group.is_public === false ? [group.name] : []));
      return { open: closedNames(open ?? null), all: closedNames(all) };
    },
    enabled: isNeeded,
    staleTime: 0,
    gcTime: 0,
  });
}
