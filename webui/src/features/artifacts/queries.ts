import { keepPreviousData, useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import type { components, paths } from '../../api/generated/rest';
import { isMoving, linkOf } from './rules';
import { putAll, type UploadedFile } from './uploads';

export const pageSize = 25;
const movingMs = 5_000;
const all = ['artifacts'] as const;

/** What the list of artifacts shows. */
export interface ArtifactsFilter {
  q: string;
  type: string;
  page: number;
}

export function useArtifacts({ q, type, page }: ArtifactsFilter) {
  return useQuery({
    queryKey: [...all, 'list', q, type, page],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/artifacts', {
          params: {
            query: {
              limit: pageSize,
              offset: (page - 1) * pageSize,
              ...(q === '' ? {} : { search: q }),
              ...(type === '' ? {} : { artifact_type: type as components['schemas']['ArtifactType'] }),
            },
          },
          signal,
        }),
      ),
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) =>
      state.data?.items.some(({ revisions }) => revisions.some(isMoving)) ? movingMs : false,
  });
}

export function useArtifact(id: string) {
  return useQuery({
    queryKey: [...all, 'one', id],
    queryFn: ({ signal }) => dataOf(rest.GET('/artifacts/{a}', { params: { path: { a: id } }, signal })),
    refetchInterval: ({ state }) => (state.data?.revisions.some(isMoving) ? movingMs : false),
  });
}

/** The files of a revision that is available; an empty id asks for none. */
export function useRevisionFiles(id: string) {
  return useQuery({
    queryKey: [...all, 'files', id],
    queryFn: ({ signal }) =>
      dataOf(rest.GET('/artifacts/revisions/{v}/files', { params: { path: { v: id } }, signal })),
    enabled: id !== '',
  });
}

/** Returns an address at which anybody may fetch a file of a revision, until it expires. */
export const useFileLink = (id: string) =>
  useMutation({
    mutationFn: async (path: string) => {
      const { files } = await dataOf(
        rest.POST('/artifacts/revisions/{v}/presign', { params: { path: { v: id } }, body: { paths: [path] } }),
      );
      return linkOf(files[0]?.url);
    },
  });

export function useArtifactRegistries() {
  return useQuery({
    queryKey: [...all, 'registries'],
    queryFn: ({ signal }) => dataOf(rest.GET('/artifact-registries', { signal })),
  });
}

function useChange<T, R>(mutationFn: (input: T) => Promise<R>) {
  const client = useQueryClient();
  return useMutation({ mutationFn, onSettled: () => client.invalidateQueries({ queryKey: all }) });
}

export type NewRegistry = components['schemas']['AddRegistryBody'];

export const useAddRegistry = () => useChange((body: NewRegistry) => rest.POST('/artifact-registries', { body }));

export type Registry = components['schemas']['RegistryItem'];
type RegistryChange = components['schemas']['ChangeRegistryBody'];

export const useChangeRegistry = () =>
  useChange(({ name, change }: { name: string; change: RegistryChange }) =>
    rest.PATCH('/artifact-registries/{r}', { params: { path: { r: name } }, body: change }),
  );

export const useRemoveRegistry = () =>
  useChange((name: string) => rest.DELETE('/artifact-registries/{r}', { params: { path: { r: name } } }));

/** Looks for artifacts in a registry, in the background, and returns the id of the task. */
export const useScan = () =>
  useMutation({
    mutationFn: async ({ registry, names }: { registry: string; names: string[] }) =>
      (await dataOf(rest.POST('/artifact-registries/{r}/scan', { params: { path: { r: registry } }, body: { names } })))
        .bgtask_id,
  });

/** Scans and imports one revision, in the background, and returns the id of the task. */
export const useFetch = () =>
  useMutation({
    mutationFn: async (body: components['schemas']['FetchBody']) =>
      (await dataOf(rest.POST('/artifacts/fetch', { body }))).bgtask_id,
  });

/** Says who may use an artifact: names of viewers, or null for what its registry says. */
export const useShareArtifact = () =>
  useChange(({ id, viewers }: { id: string; viewers: string[] | null }) =>
    dataOf(rest.PATCH('/artifacts/{a}', { params: { path: { a: id } }, body: { viewers } })),
  );

/** Removes the record of an artifact until the next scan. */
export const useDeleteArtifact = () => {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (id: string) => rest.DELETE('/artifacts/{a}', { params: { path: { a: id } } }),
    // The page of the artifact is left: it is not asked for again.
    onSuccess: () => client.invalidateQueries({ queryKey: all, refetchType: 'none' }),
  });
};

/** Makes an image of an available revision on agents, in the background, and returns the id of the task. */
export const useInstall = () =>
  useMutation({
    mutationFn: async ({ id, agents, image }: { id: string; agents: string; image: string }) =>
      (
        await dataOf(
          rest.POST('/artifacts/revisions/{v}/install', {
            params: { path: { v: id } },
            body: { agents, ...(image === '' ? {} : { image }) },
          }),
        )
      ).bgtask_id,
  });

/** Acts on one revision: begins or cancels its import, or removes its files. */
export const useRevisionAct = () =>
  useChange(({ id, act }: { id: string; act: 'import' | 'cancel' | 'cleanup' }) =>
    rest.POST(`/artifacts/${act}`, { body: { revisions: [id] } }),
  );

type UploadBody = paths['/artifacts/upload']['post']['requestBody']['content']['application/json'];

/** The storages that stages of an import can use. */
export function useArtifactStorages() {
  return useQuery({
    queryKey: [...all, 'storages'],
    queryFn: ({ signal }) => dataOf(rest.GET('/artifact-storages', { signal })),
  });
}

/**
 * Makes a version of files in a local registry and returns the id of its artifact. The storage compares the sizes that
 * are announced; once all files are there, it goes on to verify them by itself.
 */
export const useUpload = () =>
  useChange(
    async ({
      files,
      onSent,
      ...names
    }: Omit<UploadBody, 'files'> & {
      files: readonly UploadedFile[];
      onSent: (bytes: number) => void;
    }) => {
      const announced = files.map(({ path, file }) => ({ path, size: file.size }));
      const reply = await dataOf(rest.POST('/artifacts/upload', { body: { ...names, files: announced } }));
      await putAll(files, reply.files, onSent);
      return reply.revision.artifact_id;
    },
  );
