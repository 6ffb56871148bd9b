import { Button, Code, Group, Stack, Text } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { EmptyState } from '../../../components/EmptyState';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { historyPageSize, type ServiceDetails, useServiceHistory } from '../queries';
import { ServiceStatus } from './ServiceStatus';

/** Every change of the service with its reason, newest first, by pages. */
export function HistoryTab({ service }: { service: ServiceDetails }) {
  const { t } = useTranslation('services');
  const { page = 1 } = useSearch({ strict: false }) as { page?: number };
  const navigate = useNavigate();
  const query = useServiceHistory(service.endpoint_id, page - 1);
  const open = (number: number) =>
    void navigate({
      to: '/services/$id/$tab',
      params: { id: service.endpoint_id, tab: 'history' },
      search: number > 1 ? { page: number } : {},
    });
  return (
    <Query query={query}>
      {({ events, hasMore }) => (
        <Stack>
          {events.length === 0 ? (
            <EmptyState title={t('history.none')} />
          ) : (
            <SimpleTable
              label={t('tab.history')}
              rows={events.map((event, index) => ({ ...event, place: (page - 1) * historyPageSize + index }))}
              idOf={(event) => String(event.place)}
              minWidth={680}
              columns={[
                { label: t('history.at'), cell: (event) => <RelativeTime at={event.at} /> },
                { label: t('history.subject'), cell: (event) => event.subject },
                {
                  label: t('column.status'),
                  cell: (event) => <ServiceStatus status={event.status} reason={event.reason} />,
                },
                {
                  label: t('replica.detail'),
                  cell: (event) => (
                    <Stack gap={2}>
                      {event.detail && <Text size="sm">{event.detail}</Text>}
                      {Object.keys(event.data).length > 0 && <Code>{JSON.stringify(event.data)}</Code>}
                    </Stack>
                  ),
                },
              ]}
            />
          )}
          {(page > 1 || hasMore) && (
            <Group>
              <Button variant="default" size="xs" disabled={page <= 1} onClick={() => open(page - 1)}>
                {t('history.newer')}
              </Button>
              <Button variant="default" size="xs" disabled={!hasMore} onClick={() => open(page + 1)}>
                {t('history.older')}
              </Button>
            </Group>
          )}
        </Stack>
      )}
    </Query>
  );
}
