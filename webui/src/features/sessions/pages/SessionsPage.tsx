import { Button, Group, SegmentedControl, Select, Stack, Text } from '@mantine/core';
import { IconPlayerStop } from '@tabler/icons-react';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useMemo, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { slotsOf } from '../../../api/filters';
import { useMe, useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { type Column, DataTable } from '../../../components/DataTable';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Waiting } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SearchField } from '../../../components/SearchField';
import { Slots } from '../../../components/Slots';
import { SessionStatus } from '../parts/SessionStatus';
import { TerminateDialog } from '../parts/TerminateDialog';
import { WaitReason } from '../parts/WaitReason';
import { type SessionRow, useSessionPages } from '../queries';
import { isLive, statusGroups, waitOf } from '../rules';
import classes from './SessionsPage.module.css';

function useColumns(isAdministrator: boolean): Column<SessionRow>[] {
  const { t } = useTranslation('sessions');
  return useMemo(
    () => [
      {
        id: 'name',
        label: t('column.name'),
        width: 'minmax(140px, 2fr)',
        orderBy: 'name',
        cell: (row) => (
          <AnchorLink to="/sessions/$id" params={{ id: row.id ?? '' }} fw={500} className={classes.name ?? ''}>
            {row.name}
          </AnchorLink>
        ),
      },
      {
        id: 'status',
        label: t('column.status'),
        width: 'minmax(170px, 2fr)',
        orderBy: 'status',
        cell: (row) => {
          const wait = waitOf(row);
          return (
            <span className={classes.status}>
              <SessionStatus status={row.status} />
              {wait ? (
                <WaitReason wait={wait} />
              ) : (
                row.status_info && <span className={classes.info}>{row.status_info}</span>
              )}
            </span>
          );
        },
      },
      {
        id: 'slots',
        label: t('column.resources'),
        width: 'minmax(180px, 3fr)',
        isSecondary: true,
        cell: (row) => <Slots amounts={slotsOf(row.requested_slots)} />,
      },
      {
        id: 'image',
        label: t('column.image'),
        width: 'minmax(110px, 2fr)',
        orderBy: 'image',
        isSecondary: true,
        cell: (row) => row.image,
      },
      ...(isAdministrator
        ? [
            {
              id: 'owner',
              label: t('column.owner'),
              width: 'minmax(110px, 1.5fr)',
              orderBy: 'user_email',
              isSecondary: true,
              cell: (row: SessionRow) => row.user_email,
            },
          ]
        : []),
      {
        id: 'created',
        label: t('column.created'),
        width: '140px',
        orderBy: 'created_at',
        isSecondary: true,
        cell: (row) => <RelativeTime at={row.created_at} />,
      },
    ],
    [t, isAdministrator],
  );
}

/** The list of sessions: filtered, ordered and paged by the server, live, with its state in the URL. */
export function SessionsPage() {
  const { t } = useTranslation('sessions');
  const search = useSearch({ from: '/shell/sessions' });
  const navigate = useNavigate();
  const me = useMe();
  const role = useRole();
  const isAdministrator = role !== 'user';
  const accessKey = search.whose === 'mine' ? (me.data?.keypair?.access_key ?? '') : '';
  const pages = useSessionPages({ q: search.q, status: search.status, sort: search.sort, accessKey });
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [isTerminating, setTerminating] = useState(false);
  const [named, setNamed] = useState<ReadonlyMap<string, string>>(new Map());
  const columns = useColumns(isAdministrator);
  const change = (part: Partial<typeof search>) => {
    setSelected(new Set());
    void navigate({ to: '/sessions', search: { ...search, ...part }, replace: part.q !== undefined });
  };
  const select = (ids: ReadonlySet<string>) => {
    const names = new Map<string, string>();
    for (let index = 0; index < (pages.total ?? 0); index += 1) {
      const row = pages.rowAt(index);
      if (row?.id && ids.has(row.id)) names.set(row.id, row.name ?? row.id);
    }
    for (const [id, name] of named) if (ids.has(id)) names.set(id, name);
    setNamed(names);
    setSelected(new Set(names.keys()));
  };
  const isFiltered = search.q !== '' || search.status !== 'all';
  return (
    <Page title={t('title')} actions={<AnchorLink to="/sessions/arrays">{t('arrays')}</AnchorLink>}>
      <Group gap="sm" className={classes.bar ?? ''}>
        <SegmentedControl
          className={classes.segments ?? ''}
          aria-label={t('column.status')}
          value={search.status}
          onChange={(status) => change({ status })}
          data={statusGroups.map((group) => ({ value: group, label: t(`group.${group}`) }))}
        />
        <SearchField
          className={classes.filter}
          label={t('filter.label')}
          placeholder={t('filter.placeholder')}
          hint={t('filter.hint')}
          clearLabel={t('filter.clear')}
          value={search.q}
          onChange={(q) => change({ q })}
        />
        {isAdministrator && (
          <Select
            w={130}
            aria-label={t('whose.label')}
            allowDeselect={false}
            value={search.whose || 'all'}
            onChange={(whose) => change({ whose: whose === 'mine' ? 'mine' : '' })}
            data={[
              { value: 'all', label: t('whose.all') },
              { value: 'mine', label: t('whose.mine') },
            ]}
          />
        )}
        {pages.total !== undefined && (
          <Text size="sm" c="dimmed" aria-live="polite">
            {t('total', { count: pages.total })}
          </Text>
        )}
      </Group>
      {selected.size > 0 && (
        <Group className={classes.actions ?? ''} gap="sm">
          <Text size="sm">{t('selected', { count: selected.size })}</Text>
          <Button
            size="xs"
            variant="default"
            leftSection={<IconPlayerStop size={14} aria-hidden />}
            onClick={() => setTerminating(true)}
          >
            {t('terminate.action')}
          </Button>
          <Button size="xs" variant="subtle" onClick={() => setSelected(new Set())}>
            {t('deselect')}
          </Button>
        </Group>
      )}
      {pages.error !== null && <ProblemAlert error={pages.error} onRetry={pages.refetch} />}
      {pages.total === undefined && pages.error === null && <Waiting rows={8} height={30} />}
      {pages.total === 0 && (
        <EmptyState
          title={isFiltered ? t('empty.nothingMatches') : t('empty.none')}
          action={
            isFiltered ? (
              <Button variant="default" onClick={() => change({ q: '', status: 'all', whose: '' })}>
                {t('empty.showAll')}
              </Button>
            ) : null
          }
        >
          {t('empty.hint')}
        </EmptyState>
      )}
      {pages.total !== undefined && pages.total > 0 && (
        <DataTable
          label={t('title')}
          columns={columns}
          pages={pages}
          idOf={(row) => row.id ?? ''}
          nameOf={(row) => row.name ?? ''}
          order={search.sort}
          onOrder={(sort) => change({ sort })}
          selection={{ ids: selected, isSelectable: (row) => isLive(row.status), change: select }}
        />
      )}
      {isTerminating && (
        <Stack>
          <TerminateDialog
            sessions={[...selected].map((id) => ({ id, name: named.get(id) ?? id }))}
            onClose={() => setTerminating(false)}
            onDone={setSelected}
          />
        </Stack>
      )}
    </Page>
  );
}
export default SessionsPage;
