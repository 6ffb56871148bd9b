import { Button, Group, Text } from '@mantine/core';
import { IconPlus } from '@tabler/icons-react';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useMemo } from 'react';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { ButtonLink } from '../../../components/ButtonLink';
import { type Column, DataTable } from '../../../components/DataTable';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Waiting } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SearchField } from '../../../components/SearchField';
import { ServiceStatus } from '../parts/ServiceStatus';
import { type ServiceRow, useServicePages } from '../queries';
import classes from './ServicesPage.module.css';

const newestFirst = '-created_at';

function useColumns(): Column<ServiceRow>[] {
  const { t } = useTranslation('services');
  return useMemo(
    () => [
      {
        id: 'name',
        label: t('column.name'),
        width: 'minmax(140px, 2fr)',
        orderBy: 'name',
        cell: (row) => (
          <AnchorLink to="/services/$id" params={{ id: row.endpoint_id ?? '' }}>
            {row.name}
          </AnchorLink>
        ),
      },
      {
        id: 'status',
        label: t('column.status'),
        width: 'minmax(150px, 3fr)',
        orderBy: 'status',
        cell: (row) => <ServiceStatus status={row.status} reason={row.status_reason ?? null} />,
      },
      {
        id: 'replicas',
        label: t('column.replicas'),
        width: '110px',
        isSecondary: true,
        cell: (row) => t('ready', { ready: row.ready_count ?? 0, wanted: row.desired_session_count ?? 0 }),
      },
      {
        id: 'url',
        label: t('column.url'),
        width: 'minmax(140px, 3fr)',
        isSecondary: true,
        cell: (row) => <span title={row.url ?? undefined}>{row.url ?? '–'}</span>,
      },
      {
        id: 'owner',
        label: t('column.owner'),
        width: 'minmax(110px, 2fr)',
        orderBy: 'user_email',
        isSecondary: true,
        cell: (row) => row.session_owner_email,
      },
      {
        id: 'created',
        label: t('column.created'),
        width: '130px',
        orderBy: 'created_at',
        isSecondary: true,
        cell: (row) => <RelativeTime at={row.created_at} />,
      },
    ],
    [t],
  );
}

/** The model services that the person sees: filtered, ordered and paged by the server, with its state in the URL. */
export function ServicesPage() {
  const { t } = useTranslation('services');
  const { q = '', sort = newestFirst } = useSearch({ from: '/shell/services' });
  const navigate = useNavigate();
  const pages = useServicePages(q, sort);
  const columns = useColumns();
  const change = (fields: { q?: string; sort?: string }) => {
    const next = { q, sort, ...fields };
    void navigate({
      to: '/services',
      search: { ...(next.q ? { q: next.q } : {}), ...(next.sort === newestFirst ? {} : { sort: next.sort }) },
      replace: fields.q !== undefined,
    });
  };
  return (
    <Page
      title={t('title')}
      actions={
        <ButtonLink to="/services/new" leftSection={<IconPlus size={16} aria-hidden />}>
          {t('create.open')}
        </ButtonLink>
      }
    >
      <Group gap="sm">
        <SearchField
          className={classes.filter}
          label={t('filter.label')}
          placeholder={t('filter.placeholder')}
          hint={t('filter.hint')}
          clearLabel={t('filter.clear')}
          value={q}
          onChange={(text) => change({ q: text })}
        />
        {pages.total !== undefined && (
          <Text size="sm" c="dimmed" aria-live="polite">
            {t('total', { count: pages.total })}
          </Text>
        )}
      </Group>
      {pages.error !== null && <ProblemAlert error={pages.error} onRetry={pages.refetch} />}
      {pages.total === undefined && pages.error === null && <Waiting rows={8} height={30} />}
      {pages.total === 0 &&
        (q === '' ? (
          <EmptyState title={t('empty.none')}>{t('empty.hint')}</EmptyState>
        ) : (
          <EmptyState
            title={t('empty.nothingMatches')}
            action={
              <Button variant="default" onClick={() => change({ q: '' })}>
                {t('filter.clear')}
              </Button>
            }
          />
        ))}
      {pages.total !== undefined && pages.total > 0 && (
        <DataTable
          label={t('title')}
          columns={columns}
          pages={pages}
          idOf={(row) => row.endpoint_id ?? ''}
          nameOf={(row) => row.name ?? ''}
          order={sort}
          onOrder={(order) => change({ sort: order })}
        />
      )}
    </Page>
  );
}
export default ServicesPage;
