import { Group, NativeSelect, Pagination, Stack } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SearchField } from '../../../components/SearchField';
import { SimpleTable } from '../../../components/SimpleTable';
import { formatBytes } from '../../../i18n/format';
import { FetchCard } from '../parts/FetchCard';
import { RegistriesCard } from '../parts/RegistriesCard';
import { StoragesCard } from '../parts/StoragesCard';
import { UploadCard } from '../parts/UploadCard';
import { pageSize, useArtifacts } from '../queries';
import { countsOf, sizeOf } from '../rules';

/** The store of models, packages and images: what sessions can mount, and where it comes from. */
export function ArtifactsPage() {
  const { t, i18n } = useTranslation('artifacts');
  const { q = '', type = '', page = 1 } = useSearch({ from: '/shell/artifacts' });
  const navigate = useNavigate();
  const role = useRole();
  const go = (search: { q?: string; type?: string; page?: number }) => {
    const next = { q, type, page: 1, ...search };
    void navigate({
      to: '/artifacts',
      search: {
        ...(next.q && { q: next.q }),
        ...(next.type && { type: next.type }),
        ...(next.page > 1 && { page: next.page }),
      },
      replace: search.page === undefined,
    });
  };
  return (
    <Page title={t('title')}>
      <Group align="end">
        <SearchField label={t('filter')} clearLabel={t('clear')} value={q} onChange={(text) => go({ q: text })} />
        <NativeSelect
          aria-label={t('column.type')}
          data={[
            { value: '', label: t('anyType') },
            ...(['MODEL', 'PACKAGE', 'IMAGE'] as const).map((value) => ({ value, label: t(`type.${value}`) })),
          ]}
          value={type}
          onChange={(event) => go({ type: event.currentTarget.value })}
        />
      </Group>
      <Query query={useArtifacts({ q, type, page })}>
        {({ items, total_count: total }) => {
          if (total === 0 && (q !== '' || type !== '')) return <EmptyState title={t('nothingMatches')} />;
          if (total === 0) return <EmptyState title={t('none')}>{t('noneHint')}</EmptyState>;
          return (
            <Stack>
              <SimpleTable
                label={t('title')}
                rows={items}
                idOf={(item) => item.id}
                minWidth={760}
                columns={[
                  {
                    label: t('column.name'),
                    cell: (item) => (
                      <AnchorLink to="/artifacts/$id" params={{ id: item.id }}>
                        {item.name}
                      </AnchorLink>
                    ),
                  },
                  { label: t('column.type'), cell: (item) => t(`type.${item.type}` as 'type.MODEL', item.type) },
                  { label: t('column.registry'), cell: (item) => item.registry },
                  { label: t('column.usable'), cell: (item) => t('usable', countsOf(item)) },
                  {
                    label: t('column.size'),
                    cell: (item) => {
                      const size = sizeOf(item);
                      return size === null ? '–' : formatBytes(size, i18n.language);
                    },
                  },
                  { label: t('column.scanned'), cell: (item) => <RelativeTime at={item.scanned_at} /> },
                ]}
              />
              {total > pageSize && (
                <Group justify="center">
                  <Pagination
                    total={Math.ceil(total / pageSize)}
                    value={page}
                    onChange={(next) => go({ page: next })}
                    getItemProps={(number) => ({ 'aria-label': t('page', { number }) })}
                    getControlProps={(control) => ({ 'aria-label': t(`control.${control}`) })}
                  />
                </Group>
              )}
            </Stack>
          );
        }}
      </Query>
      <FetchCard />
      {(role === 'superadmin' || role === 'monitor') && <RegistriesCard mayChange={role === 'superadmin'} />}
      {role === 'superadmin' && <UploadCard />}
      {(role === 'superadmin' || role === 'monitor') && <StoragesCard />}
    </Page>
  );
}
export default ArtifactsPage;
