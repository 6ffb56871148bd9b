import { keepPreviousData, useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useLiveAgents } from '../../api/agents';
import { dataOf, rest } from '../../api/client';
import { graphql, mutate, query } from '../../api/graphql';

const refreshMs = 15_000;

function present<T>(items: readonly (T | null)[] | null | undefined): T[] {
  return (items ?? []).filter((item): item is T => item !== null);
}

// ---- audit trail, errors, settings, roles ----

export interface AuditFilter {
  email?: string;
  text?: string;
  refused?: boolean;
  before?: number;
}

export function useAudit({ email, text, refused, before }: AuditFilter) {
  return useQuery({
    queryKey: ['audit', email, text, refused, before],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/logs/audit', {
          params: {
            query: {
              limit: 50,
              ...(email ? { email } : {}),
              ...(text ? { text } : {}),
              ...(refused ? { refused: 'true' as const } : {}),
              ...(before ? { before } : {}),
            },
          },
          signal,
        }),
      ),
    placeholderData: keepPreviousData,
    refetchInterval: before === undefined ? refreshMs : false,
  });
}

export const errorPageSize = 20;

export function useErrors(page: number) {
  return useQuery({
    queryKey: ['errors', page],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/logs/error', { params: { query: { page_no: page, page_size: errorPageSize } }, signal })),
    placeholderData: keepPreviousData,
    refetchInterval: refreshMs,
  });
}

export function useClearError() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (id: string) => rest.POST('/logs/error/{log_id}/clear', { params: { path: { log_id: id } } }),
    onSuccess: () => client.invalidateQueries({ queryKey: ['errors'] }),
  });
}

export function useSettings() {
  return useQuery({
    queryKey: ['settings'],
    queryFn: ({ signal }) => dataOf(rest.GET('/manager/settings', { signal })),
  });
}

export function usePermissions() {
  return useQuery({
    queryKey: ['permissions'],
    queryFn: ({ signal }) => dataOf(rest.GET('/auth/permissions', { signal })),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

// ---- registries of images ----

export const registriesQuery = graphql(`
  query { container_registries { hostname config { url type project username ssl_verify } } }
`);

export const createRegistry = graphql(`
  mutation ($hostname: String!, $props: CreateContainerRegistryInput!) {
    create_container_registry(hostname: $hostname, props: $props) { ok msg }
  }
`);

export const deleteRegistry = graphql(`
  mutation ($hostname: String!) {
    delete_container_registry(hostname: $hostname) { ok msg }
  }
`);

export const rescanImages = graphql(`
  mutation ($registry: String) {
    rescan_images(registry: $registry) { ok msg task_id }
  }
`);

export const aliasImage = graphql(`
  mutation ($alias: String!, $target: String!, $architecture: String) {
    alias_image(alias: $alias, target: $target, architecture: $architecture) { ok msg }
  }
`);

export const dealiasImage = graphql(`
  mutation ($alias: String!) {
    dealias_image(alias: $alias) { ok msg }
  }
`);

export const preloadImage = graphql(`
  mutation ($reference: String!, $agents: String!, $architecture: String) {
    preload_image(reference: $reference, target_agents: $agents, architecture: $architecture) { ok msg task_id }
  }
`);

export const unloadImage = graphql(`
  mutation ($reference: String!, $agents: String!, $architecture: String) {
    unload_image(reference: $reference, target_agents: $agents, architecture: $architecture) { ok msg task_id }
  }
`);

export const forgetImage = graphql(`
  mutation ($reference: String!, $architecture: String) {
    forget_image(reference: $reference, architecture: $architecture) { ok msg }
  }
`);

export const clearImages = graphql(`
  mutation ($registry: String!) {
    clear_images(registry: $registry) { ok msg }
  }
`);

export const operatorImagesQuery = graphql(`
  query {
    images(is_operation: false) {
      name tag registry architecture digest size_bytes aliases installed installed_agents supported_accelerators
      resource_limits { key min max }
    }
  }
`);

export function useRegistries() {
  return useQuery({
    queryKey: ['registries'],
    queryFn: async ({ signal }) => present((await query(registriesQuery, {}, { signal })).container_registries),
  });
}

export function useOperatorImages() {
  return useQuery({
    queryKey: ['images', 'operator'],
    queryFn: async ({ signal }) => present((await query(operatorImagesQuery, {}, { signal })).images),
  });
}

export type OperatorImage = NonNullable<ReturnType<typeof useOperatorImages>['data']>[number];

export interface NewRegistry {
  hostname: string;
  url: string;
  type: string;
  project: string[];
  username: string | null;
  password: string | null;
}

export function useCreateRegistry() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: ({ hostname, ...props }: NewRegistry) => mutate(createRegistry, { hostname, props }),
    gcTime: 0,
    onSuccess: () => client.invalidateQueries({ queryKey: ['registries'] }),
  });
}

export function useDeleteRegistry() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (hostname: string) => mutate(deleteRegistry, { hostname }),
    onSuccess: () => client.invalidateQueries({ queryKey: ['registries'] }),
  });
}

/** Starts a scan; null scans all registries. Returns the id of its background task. */
export function useRescan() {
  return useMutation({
    mutationFn: async (registry: string | null) =>
      (await mutate(rescanImages, { registry })).rescan_images?.task_id ?? '',
  });
}

export function useAliasImage() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (variables: { alias: string; target: string; architecture: string }) => mutate(aliasImage, variables),
    onSuccess: () => client.invalidateQueries({ queryKey: ['images'] }),
  });
}

export function useDealiasImage() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (alias: string) => mutate(dealiasImage, { alias }),
    onSuccess: () => client.invalidateQueries({ queryKey: ['images'] }),
  });
}

interface PlacedImage {
  reference: string;
  architecture: string;
  agents: string;
}

/** Starts fetching an image on agents. Returns the id of its background task. */
export function usePreloadImage() {
  return useMutation({
    mutationFn: async (image: PlacedImage) => (await mutate(preloadImage, image)).preload_image?.task_id ?? '',
  });
}

/** Starts removing an image from agents. Returns the id of its background task. */
export function useUnloadImage() {
  return useMutation({
    mutationFn: async (image: PlacedImage) => (await mutate(unloadImage, image)).unload_image?.task_id ?? '',
  });
}

/** Forgets an image of a registry until the next scan. */
export function useForgetImage() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (image: { reference: string; architecture: string }) => mutate(forgetImage, image),
    onSuccess: () => client.invalidateQueries({ queryKey: ['images'] }),
  });
}

/** Forgets all images of a registry until the next scan. */
export function useClearImages() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (registry: string) => mutate(clearImages, { registry }),
    onSuccess: () => client.invalidateQueries({ queryKey: ['images'] }),
  });
}

// ---- storage ----

export const storageQuery = graphql(`
  query {
    storage_volume_list(limit: 100, offset: 0) {
      total_count
      items { id backend fsprefix path capabilities usage performance_metric }
    }
  }
`);

export const quotaScopeQuery = graphql(`
  query ($host: String!, $scope: String!) {
    quota_scope(storage_host_name: $host, quota_scope_id: $scope) {
      quota_scope_id storage_host_name details { usage_bytes usage_count hard_limit_bytes enforcement }
    }
  }
`);

export const setQuotaScope = graphql(`
  mutation ($host: String!, $scope: String!, $bytes: BigInt!) {
    set_quota_scope(storage_host_name: $host, quota_scope_id: $scope, props: { hard_limit_bytes: $bytes }) {
      quota_scope { id }
    }
  }
`);

export const unsetQuotaScope = graphql(`
  mutation ($host: String!, $scope: String!) {
    unset_quota_scope(storage_host_name: $host, quota_scope_id: $scope) { quota_scope { id } }
  }
`);

export const ownersQuery = graphql(`
  query {
    groups { id name domain_name }
  }
`);

export const ownerByEmailQuery = graphql(`
  query ($email: String!) {
    user(email: $email) { uuid email }
  }
`);

export function useStorage() {
  return useQuery({
    queryKey: ['storage'],
    queryFn: async ({ signal }) => present((await query(storageQuery, {}, { signal })).storage_volume_list?.items),
    refetchInterval: refreshMs,
  });
}

/** A quota scope, with the domain of its project. */
export interface OwnScope {
  scope: string;
  domain: string | null;
}

const scopePattern = /^(user|project):[0-9a-f-]{32,36}$/i;

/**
 * Returns the quota scopes of a user's e-mail address, or of a project's name, which is of several projects where they
 * are in several domains. A quota scope stands for itself.
 */
async function scopesOf(owner: string, signal: AbortSignal): Promise<OwnScope[]> {
  if (scopePattern.test(owner)) return [{ scope: owner, domain: null }];
  if (owner.includes('@')) {
    const { user } = await query(ownerByEmailQuery, { email: owner }, { signal });
    return user?.uuid ? [{ scope: `user:${user.uuid}`, domain: null }] : [];
  }
  const { groups } = await query(ownersQuery, {}, { signal });
  return present(groups).flatMap(({ id, name, domain_name }) =>
    id && name === owner ? [{ scope: `project:${id}`, domain: domain_name ?? null }] : [],
  );
}

/** Returns the quota scopes that an owner may mean, and the details where there is one. */
export function useQuotaScope(host: string, owner: string) {
  return useQuery({
    queryKey: ['quota-scope', host, owner],
    queryFn: async ({ signal }) => {
      const scopes = await scopesOf(owner, signal);
      const [first] = scopes;
      if (first === undefined || scopes.length > 1) return { scopes, details: null };
      const reply = await query(quotaScopeQuery, { host, scope: first.scope }, { signal });
      return { scopes, details: reply.quota_scope?.details ?? null };
    },
    enabled: host !== '' && owner !== '',
  });
}

/** Sets the limit of a quota scope in bytes; null goes back to what the policy of its owner says. */
export function useSetQuota() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: async ({ host, scope, bytes }: { host: string; scope: string; bytes: number | null }) => {
      if (bytes === null) await mutate(unsetQuotaScope, { host, scope });
      else await mutate(setQuotaScope, { host, scope, bytes });
    },
    onSuccess: () => client.invalidateQueries({ queryKey: ['quota-scope'] }),
  });
}

// ---- app proxies ----

export function useAppProxies() {
  return useQuery({
    queryKey: ['app-proxies'],
    queryFn: ({ signal }) => dataOf(rest.GET('/resource/app-proxies', { signal })),
    refetchInterval: refreshMs,
  });
}

export function useCircuits(group: string, worker: string) {
  return useQuery({
    queryKey: ['app-proxies', 'circuits', group, worker],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/resource/app-proxies/circuits', { params: { query: { scaling_group: group, worker } }, signal }),
      ),
    enabled: worker !== '',
    refetchInterval: refreshMs,
  });
}

export function useRemoveCircuit(group: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (id: string) =>
      rest.DELETE('/resource/app-proxies/circuits/{circuit_id}', {
        params: { path: { circuit_id: id }, query: { scaling_group: group } },
      }),
    onSuccess: () => client.invalidateQueries({ queryKey: ['app-proxies'] }),
  });
}

// ---- scheduler ----

export function useFreeAmounts() {
  return useQuery({
    queryKey: ['fleet'],
    queryFn: ({ signal }) => dataOf(rest.GET('/resource/fleet', { signal })),
    refetchInterval: useLiveAgents(),
  });
}

export function useReplay(group: string, order: string, placement: string) {
  return useQuery({
    queryKey: ['replay', group, order, placement],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/scheduling/replay', {
          params: {
            query: { scaling_group: group, ...(order ? { order } : {}), ...(placement ? { placement } : {}) },
          },
          signal,
        }),
      ),
    enabled: group !== '',
    placeholderData: keepPreviousData,
  });
}
