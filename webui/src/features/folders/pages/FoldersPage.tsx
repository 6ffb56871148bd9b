import { Button, Group, SegmentedControl, Text } from '@mantine/core';
import { IconFolder, IconFolderPlus, IconTrash } from '@tabler/icons-react';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { lazy, Suspense, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { Confirm } from '../../../components/Confirm';
import { type Column, DataTable } from '../../../components/DataTable';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SearchField } from '../../../components/SearchField';
import type { Pages } from '../../../components/usePages';
import { Invitations } from '../parts/Invitations';
import { type Folder, useFolders, usePurgeFolder, useRestoreFolder } from '../queries';
import { type FolderView, matchesName, permissionOf } from '../rules';

const CreateDialog = lazy(() => import('../parts/CreateDialog'));
const QuotaCard = lazy(() => import('../parts/QuotaCard'));
const EverybodysFolders = lazy(() => import('../parts/EverybodysFolders'));

const usualOrder = '-created_at';

/** Returns rows that are all there as the pages of a list. */
function pagesOf<T>(rows: readonly T[], isFetching: boolean, refetch: () => void): Pages<T> {
  return { total: rows.length, rowAt: (index) => rows[index], showRange: () => {}, isFetching, error: null, refetch };
}

function CreateButton() {
  const { t } = useTranslation('folders');
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Button leftSection={<IconFolderPlus size={16} aria-hidden />} onClick={() => setOpen(true)}>
        {t('create.open')}
      </Button>
      {isOpen && (
        <Suspense>
          <CreateDialog onClose={() => setOpen(false)} />
        </Suspense>
      )}
    </>
  );
}

function TrashActions({ folder, onPurge }: { folder: Folder; onPurge: (folder: Folder) => void }) {
  const { t } = useTranslation('folders');
  const restore = useRestoreFolder();
  return (
    <Group gap={4} wrap="nowrap">
      <Button
        size="compact-xs"
        variant="default"
        loading={restore.isPending}
        onClick={() => restore.mutate(folder.id)}
        aria-label={t('restoreName', { name: folder.name })}
      >
        {t('restore')}
      </Button>
      <Button
        size="compact-xs"
        variant="default"
        onClick={() => onPurge(folder)}
        aria-label={t('purge.openName', { name: folder.name })}
      >
        {t('purge.open')}
      </Button>
      {restore.isError && (
        <Text size="xs" c="var(--app-bad)" role="alert">
          {restore.error.message}
        </Text>
      )}
    </Group>
  );
}

function FolderList({
  folders,
  view,
  isFetching,
  refetch,
}: {
  folders: readonly Folder[];
  view: FolderView;
  isFetching: boolean;
  refetch: () => void;
}) {
  const { t } = useTranslation('folders');
  const isTrash = view === 'trash';
  const [purged, setPurged] = useState<Folder | null>(null);
  const purge = usePurgeFolder();
  const owner = (folder: Folder) =>
    folder.is_owner ? t('mine') : (folder.group_name ?? folder.user_email ?? folder.creator);
  const columns: Column<Folder>[] = [
    {
      id: 'name',
      label: t('column.name'),
      width: 'minmax(160px, 3fr)',
      cell: (folder) =>
        isTrash ? (
          <span>{folder.name}</span>
        ) : (
          <AnchorLink to="/folders/$id" params={{ id: folder.id }}>
            {folder.name}
          </AnchorLink>
        ),
    },
    { id: 'owner', label: t('column.owner'), width: '2fr', isSecondary: true, cell: owner },
    {
      id: 'access',
      label: t('column.access'),
      width: '120px',
      isSecondary: true,
      cell: (folder) => t(`access.${permissionOf(folder.permission)}`),
    },
    { id: 'host', label: t('column.host'), width: '1fr', isSecondary: true, cell: (folder) => folder.host },
    isTrash
      ? {
          id: 'actions',
          label: t('column.actions'),
          width: '220px',
          cell: (folder) => <TrashActions folder={folder} onPurge={setPurged} />,
        }
      : {
          id: 'created',
          label: t('column.created'),
          width: '130px',
          isSecondary: true,
          cell: (folder) => <RelativeTime at={folder.created_at} />,
        },
  ];
  return (
    <>
      <DataTable
        label={t(isTrash ? 'trash' : 'title')}
        columns={columns}
        pages={pagesOf(folders, isFetching, refetch)}
        idOf={(folder) => folder.id}
        nameOf={(folder) => folder.name}
      />
      {purged && (
        <Confirm
          isOpen
          title={t('purge.title', { name: purged.name })}
          action={t('purge.action')}
          name={purged.name}
          isBusy={purge.isPending}
          error={purge.error}
          onConfirm={() => purge.mutate(purged.id, { onSuccess: () => setPurged(null) })}
          onClose={() => {
            purge.reset();
            setPurged(null);
          }}
        >
          <Text>{t('purge.loses')}</Text>
        </Confirm>
      )}
    </>
  );
}

/** The folders of the person, or those in their trash, with the states of the query. */
function Folders({ view, q }: { view: 'live' | 'trash'; q: string }) {
  const { t } = useTranslation('folders');
  const isTrash = view === 'trash';
  const query = useFolders(view);
  return (
    <Query query={query}>
      {(folders) => {
        const shown = folders.filter((folder) => matchesName(folder.name, q));
        if (folders.length === 0) {
          const Icon = isTrash ? IconTrash : IconFolder;
          return (
            <EmptyState title={t(isTrash ? 'emptyTrash' : 'none')} action={<Icon size={32} aria-hidden />}>
              {t(isTrash ? 'emptyTrashHint' : 'noneHint')}
            </EmptyState>
          );
        }
        if (shown.length === 0) return <EmptyState title={t('nothingMatches')} />;
        return (
          <FolderList folders={shown} view={view} isFetching={query.isFetching} refetch={() => void query.refetch()} />
        );
      }}
    </Query>
  );
}

/** The folders that the person may use, those in their trash, and for superadmins those of everybody. */
export function FoldersPage() {
  const { t } = useTranslation('folders');
  const { q = '', view = 'live', sort = usualOrder } = useSearch({ from: '/shell/folders' });
  const navigate = useNavigate();
  const isSuperadmin = useRole() === 'superadmin';
  const search = (fields: { q?: string; sort?: string; view?: FolderView }) => {
    const next: { q: string; sort: string; view: FolderView } = { q, sort, view, ...fields };
    void navigate({
      to: '/folders',
      search: {
        ...(next.q ? { q: next.q } : {}),
        ...(next.view === 'live' ? {} : { view: next.view }),
        ...(next.view === 'all' && next.sort !== usualOrder ? { sort: next.sort } : {}),
      },
      replace: true,
    });
  };
  return (
    <Page
      title={t('title')}
      actions={
        <>
          <AnchorLink to="/folders/shares">{t('shares.title')}</AnchorLink>
          <CreateButton />
        </>
      }
    >
      <Invitations />
      <Group>
        <SegmentedControl
          aria-label={t('view')}
          value={view}
          onChange={(value) => search({ view: value as FolderView })}
          data={[
            { value: 'live', label: t('live') },
            { value: 'trash', label: t('trash') },
            ...(isSuperadmin ? [{ value: 'all', label: t('everybodys') }] : []),
          ]}
        />
        <SearchField label={t('filter')} clearLabel={t('clear')} value={q} onChange={(text) => search({ q: text })} />
      </Group>
      {view === 'all' ? (
        <Suspense>
          <EverybodysFolders q={q} sort={sort} onSort={(next) => search({ sort: next })} />
        </Suspense>
      ) : (
        <Folders view={view} q={q} />
      )}
      <Suspense>
        <QuotaCard />
      </Suspense>
    </Page>
  );
}
export default FoldersPage;
