import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { apiBase, dataOf, rest, send } from '../../api/client';
import { keys } from '../../api/keys';
import { onForget } from '../../api/personal';
import { Problem } from '../../api/problems';
import { CellBook, type RunStep } from './cells';
import { cursorOf } from './completions';
import { filesOf, firstFileOf, firstPartOf } from './files';

const books = new Map<string, CellBook>();
onForget(() => {
  for (const book of books.values()) book.stop();
  books.clear();
});

/** Returns the cells of a session, which stay until the page is loaded again. */
export function bookOf(id: string): CellBook {
  const known = books.get(id);
  if (known !== undefined) return known;
  const book = new CellBook({
    step: async ({ mode, code, runId }) => {
      const body = { mode, code, runId, flushSeconds: 2 };
      const reply = await dataOf(rest.POST('/session/{s}', { params: { path: { s: id } }, body }));
      return reply.result as unknown as RunStep;
    },
  });
  books.set(id, book);
  return book;
}

export function useInterrupt(id: string) {
  return useMutation({
    mutationFn: () => dataOf(rest.POST('/session/{s}/interrupt', { params: { path: { s: id } } })),
  });
}

/** Returns what the program of the session knows that begins like the name before the cursor. */
export function useComplete(id: string) {
  return useMutation({
    mutationFn: async ({ code, at }: { code: string; at: number }) => {
      const body = { code: code.slice(0, at), options: cursorOf(code, at) };
      return (await dataOf(rest.POST('/session/{s}/complete', { params: { path: { s: id } }, body }))).result;
    },
  });
}

const processesMs = 5_000;

/** The busiest processes of a session, asked again while they are on screen. */
export function useProcesses(id: string) {
  return useQuery({
    queryKey: [...keys.session(id), 'processes'],
    queryFn: async ({ signal }) =>
      (await dataOf(rest.GET('/session/{s}/processes', { params: { path: { s: id } }, signal }))).result,
    refetchInterval: ({ state }) => (state.status === 'error' ? false : processesMs),
  });
}

/** All that the installation knows about a session, for those who see agents. */
export function useReport(id: string) {
  return useQuery({
    queryKey: [...keys.session(id), 'report'],
    queryFn: ({ signal }) => dataOf(rest.GET('/session/{s}/report', { params: { path: { s: id } }, signal })),
    staleTime: 5_000,
  });
}

function useChange<T, R>(id: string, mutationFn: (input: T) => Promise<R>) {
  const client = useQueryClient();
  return useMutation({
    mutationFn,
    onSettled: () =>
      Promise.all([keys.session(id), keys.sessions].map((queryKey) => client.invalidateQueries({ queryKey }))),
  });
}

const at = (id: string) => ({ path: { s: id } });

export const useRename = (id: string) =>
  useChange(id, (name: string) => dataOf(rest.POST('/session/{s}/rename', { params: { ...at(id), query: { name } } })));

export const useRestart = (id: string) =>
  useChange(id, (_: undefined) => dataOf(rest.PATCH('/session/{s}', { params: at(id) })));

/** Keeps the root file system: as an archive of the agent, or as an image with a name. */
export const useCommit = (id: string) =>
  useChange(id, (name: string | null) =>
    name === null
      ? dataOf(rest.POST('/session/{s}/commit', { params: at(id) }))
      : dataOf(rest.POST('/session/{s}/imagify', { params: at(id), body: { image_name: name } })),
  );

const filesKey = (id: string) => [...keys.session(id), 'files'] as const;

/** The files of a directory below the home; an empty path is the home. */
export function useSessionFiles(id: string, path: string) {
  return useQuery({
    queryKey: [...filesKey(id), path],
    queryFn: async ({ signal }) => {
      const listing = await dataOf(
        rest.GET('/session/{s}/files', { params: { path: { s: id }, query: { path: path || '.' } }, signal }),
      );
      if (listing.errors !== '') throw new Problem({ title: listing.errors, status: 0 });
      return filesOf(listing.files);
    },
  });
}

/** Writes files into a directory below the home. */
export function useUploadFiles(id: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: async ({ path, files }: { path: string; files: readonly File[] }) => {
      const body = new FormData();
      for (const file of files) body.append('src', file, path === '' ? file.name : `${path}/${file.name}`);
      const url = `${window.location.origin}${apiBase}/session/${encodeURIComponent(id)}/upload`;
      await send(new Request(url, { method: 'POST', body }));
      return files.length;
    },
    onSettled: () => client.invalidateQueries({ queryKey: filesKey(id) }),
  });
}

/** Fetches a file of a session. Throws Problem; `damaged` is its title where the reply has no such file. */
export async function fetchFile(id: string, path: string, damaged: string): Promise<Blob> {
  const search = new URLSearchParams({ files: path });
  const url = `${window.location.origin}${apiBase}/session/${encodeURIComponent(id)}/download?${search}`;
  const response = await send(new Request(url));
  const part = firstPartOf(new Uint8Array(await response.arrayBuffer()), response.headers.get('Content-Type') ?? '');
  const content = part === null ? null : firstFileOf(part);
  if (content === null) throw new Problem({ title: damaged, status: response.status });
  return new Blob([content], { type: 'application/octet-stream' });
}

export function useDependencies(id: string) {
  return useQuery({
    queryKey: [...keys.session(id), 'dependencies'],
    queryFn: ({ signal }) => dataOf(rest.GET('/session/{s}/dependency-graph', { params: { path: { s: id } }, signal })),
  });
}
