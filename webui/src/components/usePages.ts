import { keepPreviousData, type QueryKey, useQueries } from '@tanstack/react-query';
import { useCallback, useState } from 'react';

export const pageSize = 50;

export interface ListPage<T> {
  items: T[];
  total: number;
}

export interface Pages<T> {
  /** How many rows match on the server; undefined until the first page is there. */
  total: number | undefined;
  rowAt: (index: number) => T | undefined;
  /** Tells which rows are on screen, so that their pages are fetched. */
  showRange: (first: number, last: number) => void;
  isFetching: boolean;
  error: unknown;
  refetch: () => void;
}

/**
 * Fetches the pages of a list that are on screen, and no others; what was there stays during another fetch.
 *
 * `queryKey` names the list with its filter and order.
 */
export function usePages<T>(
  queryKey: QueryKey,
  fetchPage: (offset: number, limit: number, signal: AbortSignal) => Promise<ListPage<T>>,
  refetchInterval: number | false = false,
): Pages<T> {
  const [range, setRange] = useState<readonly [number, number]>([0, 0]);
  const [first, last] = range;
  const numbers = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  if (first > 0) numbers.unshift(0); // has the total
  const results = useQueries({
    queries: numbers.map((page) => ({
      queryKey: [...queryKey, page],
      queryFn: ({ signal }: { signal: AbortSignal }) => fetchPage(page * pageSize, pageSize, signal),
      placeholderData: keepPreviousData,
      refetchInterval,
    })),
  });
  const byPage = new Map(numbers.map((page, index) => [page, results[index]]));
  const showRange = useCallback((firstRow: number, lastRow: number) => {
    const wanted = [Math.floor(firstRow / pageSize), Math.floor(Math.max(lastRow, 0) / pageSize)] as const;
    setRange((shown) => (shown[0] === wanted[0] && shown[1] === wanted[1] ? shown : wanted));
  }, []);
  const totalPage = byPage.get(0);
  return {
    total: totalPage?.data?.total,
    rowAt: (index) => byPage.get(Math.floor(index / pageSize))?.data?.items[index % pageSize],
    showRange,
    isFetching: results.some((result) => result.isFetching),
    error: results.find((result) => result.isError)?.error ?? null,
    refetch: () => {
      for (const result of results) void result.refetch();
    },
  };
}
