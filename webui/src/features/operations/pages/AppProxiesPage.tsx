import { Anchor, Button, Stack, Text } from '@mantine/core';
import { Link, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { EmptyState } from '../../../components/EmptyState';
import { gated } from '../../../components/gated';
import { Notice } from '../../../components/Notice';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { useAppProxies, useCircuits, useRemoveCircuit } from '../queries';

function Circuits({ group, worker }: { group: string; worker: string }) {
  const { t } = useTranslation('operations');
  const query = useCircuits(group, worker);
  const remove = useRemoveCircuit(group);
  const mayRemove = useRole() === 'superadmin';
  const [doomed, setDoomed] = useState<{ id: string; app: string } | null>(null);
  return (
    <>
      <Query query={query}>
        {({ items }) =>
          items.length === 0 ? (
            <Text c="dimmed">{t('proxies.noCircuits')}</Text>
          ) : (
            <SimpleTable
              label={t('proxies.circuits')}
              rows={items}
              idOf={(item) => item.id}
              minWidth={720}
              columns={[
                { label: t('proxies.app'), cell: (item) => item.app },
                { label: t('proxies.protocol'), cell: (item) => item.protocol },
                { label: t('proxies.place'), cell: (item) => item.place },
                {
                  label: t('proxies.open'),
                  cell: (item) => (
                    <StatusBadge
                      tone={item.open_to_public ? 'warn' : 'good'}
                      label={item.open_to_public ? t('proxies.everybody') : t('proxies.oneUser')}
                    />
                  ),
                },
                {
                  label: t('proxies.sessions'),
                  cell: (item) =>
                    item.session_ids.map((id) => (
                      <Anchor key={id} component={Link} to="/sessions/$id" params={{ id } as never} mr={6}>
                        {id.slice(0, 8)}
                      </Anchor>
                    )),
                },
                { label: t('column.since'), cell: (item) => <RelativeTime at={item.created_at} /> },
                ...(mayRemove
                  ? [
                      {
                        label: t('column.action'),
                        cell: (item: (typeof items)[number]) => (
                          <Button
                            size="compact-xs"
                            variant="default"
                            aria-label={t('proxies.removeOf', { app: item.app, place: item.place })}
                            onClick={() => setDoomed(item)}
                          >
                            {t('remove')}
                          </Button>
                        ),
                      },
                    ]
                  : []),
              ]}
            />
          )
        }
      </Query>
      <Confirm
        isOpen={doomed !== null}
        title={t('proxies.confirm', { app: doomed?.app ?? '' })}
        action={t('remove')}
        isBusy={remove.isPending}
        error={remove.error}
        onConfirm={() => remove.mutate(doomed?.id ?? '', { onSuccess: () => setDoomed(null) })}
        onClose={() => setDoomed(null)}
      >
        <Text>{t('proxies.means')}</Text>
      </Confirm>
    </>
  );
}

/** The app proxies of resource groups, their workers, and the circuits of one worker. */
export function AppProxiesPage() {
  const { t } = useTranslation('operations');
  const { group = '', worker = '' } = useSearch({ from: '/shell/proxies' });
  const query = useAppProxies();
  return (
    <Page title={t('proxies.title')}>
      <Query query={query}>
        {({ items }) =>
          items.length === 0 ? (
            <EmptyState title={t('proxies.none')}>{t('proxies.noneHint')}</EmptyState>
          ) : (
            <Stack>
              {items.map((proxy) => (
                <Card key={`${proxy.url} ${proxy.resource_groups.join()}`} title={proxy.url}>
                  <Stack gap="sm">
                    <Text size="sm">{t('proxies.serves', { groups: proxy.resource_groups.join(', ') })}</Text>
                    {proxy.problem !== '' && (
                      <Notice tone="bad" role="alert" title={t('proxies.away')}>
                        {proxy.problem}
                      </Notice>
                    )}
                    {proxy.problem === '' && (
                      <SimpleTable
                        label={t('proxies.workers')}
                        rows={proxy.workers}
                        idOf={(row) => row.id}
                        minWidth={760}
                        columns={[
                          {
                            label: t('proxies.worker'),
                            cell: (row) => (
                              <AnchorLink
                                to="/proxies"
                                search={{ group: proxy.resource_groups[0] ?? '', worker: row.id }}
                              >
                                {row.authority}
                              </AnchorLink>
                            ),
                          },
                          {
                            label: t('proxies.nodes'),
                            cell: (row) => (
                              <StatusBadge tone={row.nodes > 0 ? 'good' : 'bad'} label={String(row.nodes)} />
                            ),
                          },
                          { label: t('proxies.protocol'), cell: (row) => row.protocol },
                          { label: t('proxies.traffic'), cell: (row) => row.accepted_traffics.join(', ') },
                          { label: t('proxies.place'), cell: (row) => row.place || '–' },
                          {
                            label: t('proxies.slots'),
                            cell: (row) => `${row.occupied_slots} / ${row.occupied_slots + row.available_slots}`,
                          },
                          { label: t('proxies.seen'), cell: (row) => <RelativeTime at={row.updated_at} /> },
                        ]}
                      />
                    )}
                  </Stack>
                </Card>
              ))}
              {worker !== '' && (
                <Card title={t('proxies.circuits')}>
                  <Circuits group={group} worker={worker} />
                </Card>
              )}
            </Stack>
          )
        }
      </Query>
    </Page>
  );
}
export default gated(['superadmin', 'monitor'], AppProxiesPage);
