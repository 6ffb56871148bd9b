import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';
import type { components } from '../../api/generated/rest';
import { keys } from '../../api/keys';
import type { Kind } from './rules';
import type { StartChanges } from './start';

type FromTemplateBody = components['schemas']['FromTemplateBody'];
export type TemplateRow = components['schemas']['TemplateItem'];
const all = ['templates'] as const;

/** The templates of the person, or all that they may see. */
export function useTemplates(kind: Kind, isAll: boolean) {
  return useQuery({
    queryKey: [...all, kind, 'list', isAll],
    queryFn: ({ signal }) => dataOf(rest.GET(`/template/${kind}`, { params: { query: { all: isAll } }, signal })),
  });
}

/** The text of a template, in YAML. */
export function useTemplateText(kind: Kind, id: string) {
  return useQuery({
    queryKey: [...all, kind, 'text', id],
    queryFn: async ({ signal }) =>
      (await dataOf(
        rest.GET(`/template/${kind}/{id}`, { params: { path: { id } }, parseAs: 'text', signal }) as Promise<{
          data?: unknown;
        }>,
      )) as string,
    enabled: id !== '',
  });
}

function useChange<T, R>(mutationFn: (input: T) => Promise<R>) {
  const client = useQueryClient();
  return useMutation({ mutationFn, onSettled: () => client.invalidateQueries({ queryKey: all }) });
}

/** Stores the templates of a text and returns the id of the first. */
export const useCreateTemplate = (kind: Kind) =>
  useChange(async (payload: string) => (await dataOf(rest.POST(`/template/${kind}`, { body: { payload } })))[0]?.id);

export const useReplaceTemplate = (kind: Kind, id: string) =>
  useChange((payload: string) => rest.PUT(`/template/${kind}/{id}`, { params: { path: { id } }, body: { payload } }));

export const useDeleteTemplate = (kind: Kind) =>
  useChange((id: string) => rest.DELETE(`/template/${kind}/{id}`, { params: { path: { id } } }));

/** Starts a session, or a session of several kernels, from a template, and returns its id; `changes` replace what it says. */
export function useStartFrom(kind: Kind) {
  const client = useQueryClient();
  const path = kind === 'cluster' ? '/session/_/create-cluster' : '/session/_/create-from-template';
  return useMutation({
    mutationFn: async ({ id, changes = {}, token }: { id: string; changes?: StartChanges; token: string }) => {
      const body = { template_id: id, enqueueOnly: true, reuseIfExists: false, ...changes };
      const headers = { 'X-BackendAI-Client-Token': token };
      return (await dataOf(rest.POST(path, { body: body as FromTemplateBody, headers }))).sessionId;
    },
    onSuccess: () => client.invalidateQueries({ queryKey: keys.sessions }),
  });
}
