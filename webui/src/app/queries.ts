import { QueryClient } from '@tanstack/react-query';
import { asProblem } from '../api/problems';

/** Returns the cache of the page. Only requests that may succeed a moment later are repeated. */
export function makeQueryClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        staleTime: 5_000,
        gcTime: 10 * 60_000,
        refetchOnWindowFocus: true,
        retry: (count, error) => count < 2 && [0, 502, 503].includes(asProblem(error).status),
        retryDelay: (count) => Math.min(1000 * 2 ** count, 8000) * (0.5 + Math.random()),
      },
      // Without a connection an act fails at once and says so, instead of being done when nobody expects it any more.
      mutations: { retry: false, networkMode: 'always' },
    },
  });
}
