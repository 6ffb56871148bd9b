import { Anchor, Checkbox, Group, SimpleGrid, Text } from '@mantine/core';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { EmptyState } from '../../../components/EmptyState';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SearchField } from '../../../components/SearchField';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { SystemTabs } from '../parts/SystemTabs';
import { type AuditFilter, useAudit } from '../queries';
import { isSuccess } from '../rules';

/** What users have changed, newest first; older records are a page of their own. */
export function AuditPage() {
  const { t } = useTranslation('operations');
  const filter = useSearch({ from: '/shell/system/audit' });
  const navigate = useNavigate();
  const query = useAudit(filter);
  const change = (changed: Partial<AuditFilter>) => {
    const { before: _, ...rest } = { ...filter, ...changed };
    const search = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== '' && value !== false));
    void navigate({ to: '/system/audit', search, replace: true });
  };
  const isFiltered = Boolean(filter.email || filter.text || filter.refused);
  return (
    <Page title={t('audit.title')}>
      <SystemTabs here="audit" />
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
        <SearchField
          label={t('audit.email')}
          clearLabel={t('clear')}
          value={filter.email ?? ''}
          onChange={(email) => change({ email })}
        />
        <SearchField
          label={t('audit.text')}
          hint={t('audit.textHint')}
          clearLabel={t('clear')}
          value={filter.text ?? ''}
          onChange={(text) => change({ text })}
        />
      </SimpleGrid>
      <Checkbox
        label={t('audit.refused')}
        checked={filter.refused ?? false}
        onChange={(event) => change({ refused: event.currentTarget.checked })}
      />
      <Query query={query}>
        {({ items, has_more: hasMore }) => {
          if (items.length === 0) return <EmptyState title={isFiltered ? t('nothingMatches') : t('audit.none')} />;
          return (
            <>
              <SimpleTable
                label={t('audit.title')}
                rows={items}
                idOf={(item) => String(item.id)}
                minWidth={860}
                columns={[
                  { label: t('column.at'), cell: (item) => <RelativeTime at={item.at} /> },
                  { label: t('column.who'), cell: (item) => item.email ?? item.access_key ?? t('audit.nobody') },
                  { label: t('column.operation'), cell: (item) => item.operation },
                  {
                    label: t('column.object'),
                    cell: (item) => (
                      <Text size="sm" style={{ overflowWrap: 'anywhere' }}>
                        {item.object_type === 'session' && item.object_id ? (
                          <Anchor component={Link} to="/sessions/$id" params={{ id: item.object_id } as never}>
                            {item.object_id}
                          </Anchor>
                        ) : (
                          [item.object_type, item.object_id].filter(Boolean).join(' ')
                        )}
                      </Text>
                    ),
                  },
                  {
                    label: t('column.outcome'),
                    cell: (item) => (
                      <StatusBadge tone={isSuccess(item.outcome) ? 'good' : 'bad'} label={item.outcome} />
                    ),
                  },
                  {
                    label: t('column.request'),
                    cell: (item) => (
                      <Text size="xs" c="dimmed" ff="monospace">
                        {item.request_id}
                      </Text>
                    ),
                  },
                ]}
              />
              <Group>
                {filter.before !== undefined && (
                  <AnchorLink to="/system/audit" search={({ before: _, ...rest }) => rest}>
                    {t('audit.newest')}
                  </AnchorLink>
                )}
                {hasMore && (
                  <AnchorLink to="/system/audit" search={(search) => ({ ...search, before: items.at(-1)?.id ?? 0 })}>
                    {t('audit.older')}
                  </AnchorLink>
                )}
              </Group>
            </>
          );
        }}
      </Query>
    </Page>
  );
}
export default gated(['superadmin'], AuditPage);
