import { Skeleton, Stack } from '@mantine/core';
import type { UseQueryResult } from '@tanstack/react-query';
import { type ReactNode, useEffect, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { ProblemAlert } from './ProblemAlert';
import classes from './Query.module.css';

/** Shows the place of data that is on its way, once it takes longer than 150 ms. */
export function Waiting({ rows = 4, height = 20 }: { rows?: number; height?: number }) {
  const { t } = useTranslation('components');
  const [isShown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return (
    <Stack gap="xs" role="status" aria-label={t('loading')} mih={rows * (height + 10)}>
      {isShown &&
        Array.from({ length: rows }, (_, row) => `row-${row}`).map((key) => <Skeleton key={key} height={height} />)}
    </Stack>
  );
}

/**
 * Shows one of the states of a query: waiting, failed, or the data.
 *
 * Data that are there stay during another fetch, marked by a thin bar, and stay when it fails, below the problem.
 */
export function Query<T>({
  query,
  rows,
  children,
}: {
  query: UseQueryResult<T>;
  rows?: number;
  children: (data: T) => ReactNode;
}) {
  const { t } = useTranslation('components');
  if (query.data === undefined) {
    return query.isError ? (
      <ProblemAlert error={query.error} onRetry={() => void query.refetch()} />
    ) : (
      <Waiting {...(rows === undefined ? {} : { rows })} />
    );
  }
  return (
    <div className={classes.frame} aria-busy={query.isFetching}>
      {query.isFetching && <div className={classes.bar} />}
      {query.isError && (
        <Stack gap="xs" mb="md">
          <ProblemAlert error={query.error} onRetry={() => void query.refetch()} />
          <div className={classes.stale}>{t('stale')}</div>
        </Stack>
      )}
      {children(query.data)}
    </div>
  );
}
