import { Select, Stack } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { Chart } from '../../../components/Chart';
import { EmptyState } from '../../../components/EmptyState';
import { Query } from '../../../components/Query';
import { type TokenUse, TokenUseTable } from '../../../components/TokenUseTable';
import { formatNumber } from '../../../i18n/format';
import { type ServiceDetails, useServiceUse } from '../queries';
import { type UseGrouping, useGroupings } from '../rules';

function nameOf(by: UseGrouping, language: string) {
  return ({ name, key }: TokenUse['groups'][number]): string => {
    if (name !== null || key === null) return name ?? '–';
    if (by === 'day') return new Date(key).toLocaleDateString(language, { timeZone: 'UTC' });
    if (by === 'hour') return new Date(key).toLocaleString(language);
    return key.slice(0, 8) || '–';
  };
}

/** What tokens used at the service in the last 30 days, summed up as the address says. */
export function UsageTab({ service }: { service: ServiceDetails }) {
  const { t, i18n } = useTranslation('services');
  const { by = 'day' } = useSearch({ strict: false }) as { by?: UseGrouping };
  const navigate = useNavigate();
  const query = useServiceUse(service.endpoint_id, by);
  return (
    <Stack>
      <Select
        label={t('use.by')}
        w={220}
        value={by}
        allowDeselect={false}
        data={useGroupings.map((value) => ({ value, label: t(`use.grouping.${value}`) }))}
        onChange={(value) =>
          void navigate({
            to: '/services/$id/$tab',
            params: { id: service.endpoint_id, tab: 'usage' },
            search: value === 'day' ? {} : { by: value as UseGrouping },
          })
        }
      />
      <Query query={query}>
        {(use) =>
          use.groups.length === 0 ? (
            <EmptyState title={t('use.none')}>{t('use.noneHint')}</EmptyState>
          ) : (
            <Stack>
              {(by === 'day' || by === 'hour') && use.groups.length > 1 && (
                <Chart
                  label={t('use.tokens')}
                  times={use.groups.map((group) => Date.parse(group.key ?? '') / 1000)}
                  series={[
                    { label: t('use.prompts'), values: use.groups.map((group) => group.prompt_tokens) },
                    { label: t('use.answers'), values: use.groups.map((group) => group.output_tokens) },
                  ]}
                  capacity={null}
                  format={(value) => formatNumber(value, i18n.language)}
                />
              )}
              <TokenUseTable use={use} label={t('tab.usage')} nameOf={nameOf(by, i18n.language)} />
            </Stack>
          )
        }
      </Query>
    </Stack>
  );
}
export default UsageTab;
