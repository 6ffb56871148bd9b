import type { UseQueryResult } from '@tanstack/react-query';
import { ProblemAlert } from '../../../components/ProblemAlert';

/** Says why choices of the form are missing; shows nothing while they are there. */
export function Failed({ query }: { query: UseQueryResult<unknown> }) {
  return query.isError ? <ProblemAlert error={query.error} onRetry={() => void query.refetch()} /> : null;
}
