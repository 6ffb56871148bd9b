import { Button } from '@mantine/core';
import { lazy, Suspense, useState } from 'react';
import { useTranslation } from 'react-i18next';

import { AnchorLink } from '../../../components/AnchorLink';
import type { Column } from '../../../components/DataTable';
import { PagedList } from '../../../components/PagedList';
import { RelativeTime } from '../../../components/RelativeTime';
import { formatBytes } from '../../../i18n/format';
import { useAllFolders } from '../queries';

const OwnerDialog = lazy(() => import('./OwnerDialog'));

/** The folders of all users and projects with what they hold, deleted ones too, for superadmins. */
export default function EverybodysFolders({
  q,
  sort,
  onSort,
}: {
  q: string;
  sort: string;
  onSort: (sort: string) => void;
}) {
  const { t, i18n } = useTranslation('folders');
  const pages = useAllFolders(q, sort);
  type Row = NonNullable<ReturnType<typeof pages.rowAt>>;
  const [given, setGiven] = useState<Row | null>(null);
  const nameOf = (row: Row) => row.name ?? '';
  const ownerOf = (row: Row) => row.group_name ?? row.user_email ?? row.creator ?? '';
  const columns: Column<Row>[] = [
    {
      id: 'name',
      label: t('column.name'),
      width: 'minmax(150px, 2fr)',
      orderBy: 'name',
      cell: (row) =>
        row.status?.startsWith('delete') ? (
          <span>{row.name}</span>
        ) : (
          <AnchorLink to="/folders/$id" params={{ id: row.id ?? '' }}>
            {row.name}
          </AnchorLink>
        ),
    },
    { id: 'owner', label: t('column.owner'), width: '1.5fr', isSecondary: true, cell: ownerOf },
    {
      id: 'host',
      label: t('column.host'),
      width: 'minmax(130px, 1fr)',
      orderBy: 'host',
      isSecondary: true,
      cell: (row) => row.host,
    },
    {
      id: 'status',
      label: t('column.status'),
      width: '130px',
      orderBy: 'status',
      isSecondary: true,
      cell: (row) => t(`status.${row.status}`, { defaultValue: row.status ?? '' }),
    },
    {
      id: 'size',
      label: t('column.size'),
      width: '90px',
      cell: (row) =>
        row.cur_size === null || row.cur_size === undefined ? '–' : formatBytes(Number(row.cur_size), i18n.language),
    },
    {
      id: 'created',
      label: t('column.created'),
      width: '130px',
      orderBy: 'created_at',
      isSecondary: true,
      cell: (row) => <RelativeTime at={row.created_at} />,
    },
    {
      id: 'actions',
      label: t('column.actions'),
      width: '150px',
      cell: (row) =>
        row.ownership_type === 'user' &&
        !row.status?.startsWith('delete') && (
          <Button
            size="compact-xs"
            variant="default"
            aria-label={t('owner.openName', { name: row.name })}
            onClick={() => setGiven(row)}
          >
            {t('owner.open')}
          </Button>
        ),
    },
  ];
  return (
    <>
      <PagedList
        pages={pages}
        label={t('everybodys')}
        columns={columns}
        idOf={(row) => row.id ?? ''}
        nameOf={nameOf}
        sort={sort}
        onSort={onSort}
      />
      {given && (
        <Suspense>
          <OwnerDialog
            folder={{ id: given.id ?? '', name: nameOf(given), owner: ownerOf(given) }}
            onClose={() => setGiven(null)}
          />
        </Suspense>
      )}
    </>
  );
}
