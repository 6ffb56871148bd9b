import { Text } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { EmptyState } from '../../../components/EmptyState';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { SearchField } from '../../../components/SearchField';
import { SimpleTable } from '../../../components/SimpleTable';
import { SystemTabs } from '../parts/SystemTabs';
import { usePermissions } from '../queries';

const roles = ['superadmin', 'admin', 'monitor', 'user'] as const;

/** What each role may do, and on whose objects; the table of the manager itself. */
export function RolesPage() {
  const { t } = useTranslation('operations');
  const { q = '' } = useSearch({ from: '/shell/system/roles' });
  const navigate = useNavigate();
  const query = usePermissions();
  const scopeName = (scope: string | undefined) =>
    scope === 'all' || scope === 'domain' || scope === 'own' ? t(`roles.scope.${scope}`) : '–';
  return (
    <Page title={t('roles.title')}>
      <SystemTabs here="roles" />
      <Text c="dimmed" size="sm">
        {t('roles.means')}
      </Text>
      <SearchField
        label={t('roles.find')}
        clearLabel={t('clear')}
        value={q}
        onChange={(text) => void navigate({ to: '/system/roles', search: text ? { q: text } : {}, replace: true })}
      />
      <Query query={query}>
        {({ items }) => {
          const shown = items.filter((item) => item.operation.toLowerCase().includes(q.toLowerCase()));
          if (shown.length === 0) return <EmptyState title={t('nothingMatches')} />;
          return (
            <SimpleTable
              label={t('roles.title')}
              rows={shown}
              idOf={(item) => item.operation}
              minWidth={760}
              columns={[
                { label: t('column.operation'), cell: (item) => item.operation },
                ...roles.map((role) => ({
                  label: role,
                  cell: (item: (typeof items)[number]) => scopeName(item.scopes[role]),
                })),
                { label: t('roles.projectAdmin'), cell: (item) => (item.project_admin ? t('roles.project') : '–') },
              ]}
            />
          );
        }}
      </Query>
      <Text size="sm">
        {roles.map((role, place) => (
          <span key={role}>
            {place > 0 && ' · '}
            <AnchorLink to="/people" search={{ q: `role == "${role}"` }}>
              {t('roles.usersOf', { role })}
            </AnchorLink>
          </span>
        ))}
      </Text>
    </Page>
  );
}
export default gated(['admin', 'superadmin', 'monitor'], RolesPage);
