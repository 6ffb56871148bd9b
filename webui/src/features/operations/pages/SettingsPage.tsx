import { Code, SegmentedControl, Stack, Text } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { EmptyState } from '../../../components/EmptyState';
import { gated } from '../../../components/gated';
import { Notice } from '../../../components/Notice';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { SearchField } from '../../../components/SearchField';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { SystemTabs } from '../parts/SystemTabs';
import { useSettings } from '../queries';
import { settingText } from '../rules';

/** The settings of the manager that answers: what holds, what was set, and what has no effect. */
export function SettingsPage() {
  const { t } = useTranslation('operations');
  const { q = '', of = 'set' } = useSearch({ from: '/shell/system/settings' });
  const navigate = useNavigate();
  const query = useSettings();
  const go = (search: { q?: string; of?: 'all' }) => void navigate({ to: '/system/settings', search, replace: true });
  return (
    <Page title={t('settings.title')}>
      <SystemTabs here="settings" />
      <Text c="dimmed" size="sm">
        {t('settings.means')}
      </Text>
      <SearchField
        label={t('settings.find')}
        clearLabel={t('clear')}
        value={q}
        onChange={(text) => go({ ...(text ? { q: text } : {}), ...(of === 'all' ? { of } : {}) })}
      />
      <SegmentedControl
        aria-label={t('settings.which')}
        value={of}
        onChange={(value) => go({ ...(q ? { q } : {}), ...(value === 'all' ? { of: 'all' as const } : {}) })}
        data={[
          { value: 'set', label: t('settings.set') },
          { value: 'all', label: t('settings.all') },
        ]}
      />
      <Query query={query}>
        {({ items }) => {
          const idle = items.filter((item) => item.is_set && item.without_effect !== '');
          const text = q.toLowerCase();
          const shown = items
            .filter((item) => of === 'all' || item.is_set)
            .filter((item) => `${item.key} ${item.description}`.toLowerCase().includes(text));
          return (
            <Stack>
              {idle.length > 0 && (
                <Notice tone="wait" role="status" title={t('settings.idle', { count: idle.length })}>
                  {idle.map((item) => `${item.key}: ${item.without_effect}`).join(' · ')}
                </Notice>
              )}
              {shown.length === 0 ? (
                <EmptyState title={q ? t('nothingMatches') : t('settings.none')} />
              ) : (
                <SimpleTable
                  label={t('settings.title')}
                  rows={shown}
                  idOf={(item) => item.key}
                  minWidth={820}
                  columns={[
                    { label: t('column.setting'), cell: (item) => <Code>{item.key}</Code> },
                    {
                      label: t('column.value'),
                      cell: (item) => (
                        <Text size="sm" ff="monospace" miw={140} style={{ overflowWrap: 'anywhere' }}>
                          {settingText(item.value)}
                        </Text>
                      ),
                    },
                    {
                      label: t('column.default'),
                      cell: (item) => (
                        <Text size="sm" c="dimmed" ff="monospace" miw={100} style={{ overflowWrap: 'anywhere' }}>
                          {settingText(item.default)}
                        </Text>
                      ),
                    },
                    {
                      label: t('column.effect'),
                      cell: (item) =>
                        item.without_effect ? (
                          <StatusBadge tone="idle" label={t('settings.noEffect')} />
                        ) : (
                          <StatusBadge
                            tone="good"
                            label={item.is_set ? t('settings.isSet') : t('settings.isDefault')}
                          />
                        ),
                    },
                    { label: t('column.meaning'), cell: (item) => <Text size="sm">{item.description}</Text> },
                  ]}
                />
              )}
            </Stack>
          );
        }}
      </Query>
    </Page>
  );
}
export default gated(['superadmin'], SettingsPage);
