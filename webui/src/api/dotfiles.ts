import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from './client';

/** A file that each new session has in its home; `permission` is octal. */
export interface Dotfile {
  path: string;
  permission: string;
  data: string;
}

/** Whose sessions have the dotfiles: those of the person, of a project by its id, or of a domain by its name. */
export type DotfileOwner = { scope: 'user' } | { scope: 'group'; group: string } | { scope: 'domain'; domain: string };

/** Returns the address of the dotfiles of an owner, and what names the owner in a request. */
function placeOf({ scope, ...names }: DotfileOwner) {
  // The three take the same fields; only that a project is named is required of one of them.
  return { path: `/${scope}-config/dotfiles` as '/domain-config/dotfiles', names };
}

const keyOf = ({ scope, ...names }: DotfileOwner) => ['dotfiles', scope, names] as const;

export function useDotfiles(owner: DotfileOwner) {
  const { path, names } = placeOf(owner);
  return useQuery({
    queryKey: keyOf(owner),
    queryFn: async ({ signal }) =>
      (await dataOf(rest.GET(path, { params: { query: names }, signal }))) as unknown as Dotfile[],
  });
}

export function usePutDotfile(owner: DotfileOwner) {
  const client = useQueryClient();
  const { path, names } = placeOf(owner);
  return useMutation({
    mutationFn: ({ file, isNew }: { file: Dotfile; isNew: boolean }) => {
      const body = { ...file, ...names };
      return isNew ? rest.POST(path, { body }) : rest.PATCH(path, { body });
    },
    onSettled: () => client.invalidateQueries({ queryKey: keyOf(owner) }),
  });
}

export function useDeleteDotfile(owner: DotfileOwner) {
  const client = useQueryClient();
  const { path, names } = placeOf(owner);
  return useMutation({
    mutationFn: (file: string) => rest.DELETE(path, { params: { query: { path: file, ...names } } }),
    onSettled: () => client.invalidateQueries({ queryKey: keyOf(owner) }),
  });
}
