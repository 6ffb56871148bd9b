import { useTranslation } from 'react-i18next';
import { type Column, DataTable } from './DataTable';
import { EmptyState } from './EmptyState';
import { ProblemAlert } from './ProblemAlert';
import { Waiting } from './Query';
import type { Pages } from './usePages';

/** A paged list with its states. */
export function PagedList<T>({
  pages,
  label,
  columns,
  idOf,
  nameOf = idOf,
  sort,
  onSort,
}: {
  pages: Pages<T>;
  label: string;
  columns: readonly Column<T>[];
  idOf: (row: T) => string;
  /** What the labels of a row say; its id by default. */
  nameOf?: (row: T) => string;
  sort: string;
  onSort: (sort: string) => void;
}) {
  const { t } = useTranslation('components');
  return (
    <>
      {pages.error !== null && <ProblemAlert error={pages.error} onRetry={pages.refetch} />}
      {pages.total === undefined && pages.error === null && <Waiting rows={6} />}
      {pages.total === 0 && <EmptyState title={t('table.nothingMatches')} />}
      {pages.total !== undefined && pages.total > 0 && (
        <DataTable
          label={label}
          columns={columns}
          pages={pages}
          idOf={idOf}
          nameOf={nameOf}
          order={sort}
          onOrder={onSort}
        />
      )}
    </>
  );
}
