import { Group, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { formatBytes } from '../../../i18n/format';
import { useHosts, useQuotas } from '../queries';
import { isFull } from '../rules';

function Quotas({ hosts }: { hosts: readonly string[] }) {
  const { t, i18n } = useTranslation('folders');
  const bytes = (value: number | null, without: string) =>
    value === null ? without : formatBytes(value, i18n.language);
  return (
    <Query query={useQuotas(hosts)} rows={1}>
      {(quotas) => (
        <SimpleTable
          label={t('quota.title')}
          rows={quotas}
          idOf={({ host, scope }) => `${host} ${scope}`}
          columns={[
            { label: t('host'), cell: ({ host }) => host },
            { label: t('column.owner'), cell: ({ owner }) => owner },
            {
              label: t('fact.used'),
              cell: (quota) =>
                quota.problem === '' ? (
                  <Group gap="xs">
                    {bytes(quota.usedBytes, '–')}
                    {isFull(quota) && <StatusBadge tone="bad" label={t('quota.full')} />}
                  </Group>
                ) : (
                  <Text size="sm" c="var(--app-bad)">
                    {quota.problem}
                  </Text>
                ),
            },
            {
              label: t('fact.limit'),
              cell: ({ limitBytes, problem }) => (problem === '' ? bytes(limitBytes, t('quota.none')) : '–'),
            },
            {
              label: t('quota.enforcement'),
              cell: ({ enforcement }) =>
                enforcement === 'hard' || enforcement === 'soft' ? t(`quota.${enforcement}`) : enforcement || '–',
            },
          ]}
        />
      )}
    </Query>
  );
}

/** What the person and their projects keep on each storage host, and what they may. */
export function QuotaCard() {
  const { t } = useTranslation('folders');
  return (
    <Card title={t('quota.title')}>
      <Text size="sm" c="dimmed" mb="sm">
        {t('quota.means')}
      </Text>
      <Query query={useHosts()} rows={1}>
        {({ allowed }) => <Quotas hosts={allowed} />}
      </Query>
    </Card>
  );
}
export default QuotaCard;
