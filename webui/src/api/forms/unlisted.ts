import { useQueryClient } from '@tanstack/react-query';
import { useLocation, useNavigate } from '@tanstack/react-router';
import { useEffect, useState } from 'react';

declare module '@tanstack/react-router' {
  interface HistoryState {
    /** The name of what a person has typed into a form and its address must not have. */
    unlisted?: string;
  }
}

interface Typed<T> {
  name: string;
  values: T;
  /** Whether the entry of the history has the name already. */
  isNamed: boolean;
}

const keyOf = (name: string | undefined) => ['unlisted', name ?? ''] as const;

export interface Unlisted<T> {
  values: T;
  /** Whether the page was loaded anew since they were typed, so that they are gone. */
  isLost: boolean;
  /** Keeps values and returns the state of the entry of the history, with which the caller goes to the new address. */
  keep: (values: T) => { unlisted?: string };
}

/**
 * Holds values of a form that its address must not have, such as secrets.
 *
 * They are in the memory of the page only, by the entry of the history: they are there again after a look at another
 * page, and gone after a reload or a sign-out, which clears the cache of queries.
 */
export function useUnlisted<T extends Record<string, string>>(empty: T): Unlisted<T> {
  const client = useQueryClient();
  const name = useLocation({ select: ({ state }) => state.unlisted });
  const isListed = useLocation({ select: ({ search }) => Object.keys(empty).some((field) => field in search) });
  const navigate = useNavigate();
  useEffect(() => {
    if (!isListed) return; // an address of before, or one that somebody made
    const search = (before: object) =>
      Object.fromEntries(Object.entries(before).filter(([field]) => !(field in empty)));
    void navigate({ to: '.', search: search as never, replace: true, state: true });
  }, [isListed, empty, navigate]);
  const [typed, setTyped] = useState<Typed<T> | null>(null);
  const isCommitted = typed !== null && typed.name === name;
  useEffect(() => {
    if (isCommitted) setTyped((before) => before && { ...before, isNamed: true });
  }, [isCommitted]);
  const isTyped = isCommitted || (typed !== null && name === undefined && !typed.isNamed);
  const kept = client.getQueryData<T>(keyOf(name));
  const isLost = name !== undefined && !isTyped && kept === undefined;
  return {
    values: isTyped ? typed.values : (kept ?? empty),
    isLost,
    keep: (values) => {
      if (Object.values(values).every((value) => value === '')) {
        if (isLost) return { unlisted: name }; // so that it is still told
        client.removeQueries({ queryKey: keyOf(name), exact: true });
        setTyped(null);
        return {};
      }
      const next = name ?? (isTyped ? typed.name : crypto.randomUUID());
      client.setQueryDefaults(keyOf(next), { gcTime: Number.POSITIVE_INFINITY });
      client.setQueryData(keyOf(next), values);
      setTyped({ name: next, values, isNamed: next === name });
      return { unlisted: next };
    },
  };
}
