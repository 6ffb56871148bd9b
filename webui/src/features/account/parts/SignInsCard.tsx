import { Group, Pagination, Stack } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { signInPageSize, useSignIns } from '../queries';

/** The latest sign-ins as the person, and tries of them. The page of the list is in the URL. */
export function SignInsCard() {
  const { t } = useTranslation('account');
  const { page = 1 } = useSearch({ from: '/shell/account' });
  const navigate = useNavigate();
  const query = useSignIns(page);
  const outcomeOf = (outcome: string) => t(`signIns.outcome.${outcome}` as 'signIns.outcome.ok', outcome);
  return (
    <Card title={t('signIns.title')}>
      <Query query={query}>
        {({ items, total_count: total }) => (
          <Stack gap="sm">
            <SimpleTable
              label={t('signIns.title')}
              rows={items}
              idOf={(item) => `${item.at} ${item.address} ${item.outcome}`}
              columns={[
                { label: t('signIns.at'), cell: (item) => <RelativeTime at={item.at} /> },
                { label: t('signIns.address'), cell: (item) => item.address },
                {
                  label: t('signIns.method'),
                  cell: (item) => t(`signIns.by.${item.method}` as 'signIns.by.password', item.method),
                },
                {
                  label: t('signIns.result'),
                  cell: (item) => (
                    <StatusBadge tone={item.outcome === 'ok' ? 'good' : 'bad'} label={outcomeOf(item.outcome)} />
                  ),
                },
              ]}
            />
            {total > signInPageSize && (
              <Group justify="center">
                <Pagination
                  total={Math.ceil(total / signInPageSize)}
                  value={page}
                  onChange={(next) => void navigate({ to: '/account', search: next > 1 ? { page: next } : {} })}
                  getItemProps={(number) => ({ 'aria-label': t('signIns.page', { number }) })}
                  getControlProps={(control) => ({
                    'aria-label': t(`signIns.control.${control}` as 'signIns.control.next'),
                  })}
                />
              </Group>
            )}
          </Stack>
        )}
      </Query>
    </Card>
  );
}
