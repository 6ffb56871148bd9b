import { Button, Group, NativeSelect, Progress, SimpleGrid, Stack, Text } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { useGroupNames } from '../../../api/choices';
import { apiBase } from '../../../api/client';
import { formatSlot, slotLabel, useSlotDetails } from '../../../api/slots';
import { AnchorLink } from '../../../components/AnchorLink';
import { ButtonLink } from '../../../components/ButtonLink';
import { Card } from '../../../components/Card';
import { EmptyState } from '../../../components/EmptyState';
import { Facts } from '../../../components/Facts';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { useFreeAmounts, useReplay } from '../queries';
import { fragmentationOf, percentOf } from '../rules';

/** How the free amounts of a resource group are spread: a sum that is free nowhere at once starts nothing. */
function FragmentationCard({ group }: { group: string }) {
  const { t, i18n } = useTranslation('operations');
  const details = useSlotDetails().data;
  const amount = (slot: string, value: number) => formatSlot(slot, String(value), details, i18n.language);
  return (
    <Card title={t('scheduler.fragmentation')}>
      <Query query={useFreeAmounts()}>
        {(view) => {
          const slots = fragmentationOf(view, group);
          if (slots.length === 0) return <Text c="dimmed">{t('scheduler.noAgents')}</Text>;
          return (
            <SimpleGrid cols={{ base: 1, lg: 2 }}>
              {slots.map((each) => (
                <Stack key={each.slot} gap={4}>
                  <Text fw={600}>{slotLabel(each.slot, details)}</Text>
                  <Text size="sm">
                    {t('scheduler.freeOf', {
                      free: amount(each.slot, each.free),
                      total: amount(each.slot, each.total),
                      largest: amount(each.slot, each.largest),
                    })}
                  </Text>
                  {each.steps.map((step) => (
                    <Group key={step.amount} gap="xs" wrap="nowrap">
                      <Text size="xs" w={110}>
                        {t('scheduler.step', { count: step.agents, amount: amount(each.slot, step.amount) })}
                      </Text>
                      <Progress
                        flex={1}
                        value={percentOf(step.agents, Math.max(...each.steps.map(({ agents }) => agents)))}
                        aria-label={t('scheduler.step', { count: step.agents, amount: amount(each.slot, step.amount) })}
                      />
                    </Group>
                  ))}
                </Stack>
              ))}
            </SimpleGrid>
          );
        }}
      </Query>
    </Card>
  );
}

/** The next pass by the policy of the resource group and by another, side by side. */
function ReplayCard({ group, order, placement }: { group: string; order: string; placement: string }) {
  const { t, i18n } = useTranslation(['operations', 'sessions']);
  const navigate = useNavigate();
  const query = useReplay(group, order, placement);
  const go = (search: { order?: string; placement?: string }) =>
    void navigate({ to: '/scheduler', search: (before) => ({ ...before, ...search }), replace: true });
  const outcome = (word: string) => {
    if (word === 'placed') return t('operations:scheduler.starts');
    return i18n.exists(`reason.${word}`, { ns: 'sessions' })
      ? t(`sessions:reason.${word}` as 'sessions:reason.not-yet')
      : word;
  };
  return (
    <Card title={t('operations:scheduler.replay')}>
      <Stack gap="sm">
        <Text size="sm" c="dimmed">
          {t('operations:scheduler.replayMeans')}
        </Text>
        <Query query={query}>
          {(view) => (
            <Stack gap="sm">
              <Group align="end">
                <NativeSelect
                  label={t('operations:scheduler.order')}
                  data={view.orders}
                  value={order || view.present.order}
                  onChange={(event) => go({ order: event.currentTarget.value })}
                />
                <NativeSelect
                  label={t('operations:scheduler.placement')}
                  data={view.placements}
                  value={placement || view.present.placement}
                  onChange={(event) => go({ placement: event.currentTarget.value })}
                />
              </Group>
              <SimpleGrid cols={{ base: 1, sm: 2 }}>
                {(['present', 'other'] as const).map((which) => (
                  <Facts
                    key={which}
                    rows={[
                      [t(`operations:scheduler.${which}`), `${view[which].order}, ${view[which].placement}`],
                      [t('operations:scheduler.waiting'), view.waiting],
                      [t('operations:scheduler.placed'), view[which].placed],
                      [t('operations:scheduler.reserved'), view[which].reserved],
                      [t('operations:scheduler.evictions'), view[which].evictions],
                      [
                        t('operations:scheduler.reasons'),
                        Object.entries(view[which].reasons)
                          .map(([reason, count]) => `${outcome(reason)}: ${count}`)
                          .join(' · '),
                      ],
                    ]}
                  />
                ))}
              </SimpleGrid>
              {view.items.length > 0 && (
                <SimpleTable
                  label={t('operations:scheduler.replay')}
                  rows={view.items}
                  idOf={(item) => item.id}
                  columns={[
                    {
                      label: t('operations:column.session'),
                      cell: (item) => (
                        <AnchorLink to="/sessions/$id" params={{ id: item.id }}>
                          {item.name}
                        </AnchorLink>
                      ),
                    },
                    { label: t('operations:scheduler.present'), cell: (item) => outcome(item.present) },
                    {
                      label: t('operations:scheduler.other'),
                      cell: (item) => (
                        <StatusBadge
                          tone={item.present === item.other ? 'idle' : item.other === 'placed' ? 'good' : 'wait'}
                          label={outcome(item.other)}
                        />
                      ),
                    },
                  ]}
                />
              )}
            </Stack>
          )}
        </Query>
      </Stack>
    </Card>
  );
}

/** What the scheduler could do: fragmentation, a trial of a request, and the next pass by another policy. */
export function SchedulerPage() {
  const { t } = useTranslation('operations');
  const { group = '', order = '', placement = '' } = useSearch({ from: '/shell/scheduler' });
  const navigate = useNavigate();
  const names = useGroupNames();
  return (
    <Page title={t('scheduler.title')}>
      <Query query={names}>
        {(groups) => {
          const chosen = groups.includes(group) ? group : (groups[0] ?? '');
          if (chosen === '') return <EmptyState title={t('scheduler.noGroups')} />;
          const dump = `${apiBase}/scheduling/dump?${new URLSearchParams({ scaling_group: chosen })}`;
          return (
            <Stack>
              <Group align="end">
                <NativeSelect
                  label={t('scheduler.group')}
                  data={groups}
                  value={chosen}
                  onChange={(event) =>
                    void navigate({ to: '/scheduler', search: { group: event.currentTarget.value } })
                  }
                />
                <ButtonLink to="/sessions/new" variant="default">
                  {t('scheduler.whatIf')}
                </ButtonLink>
                <ButtonLink to="/queue" search={{ group: chosen }} variant="default">
                  {t('scheduler.queue')}
                </ButtonLink>
                <Button component="a" href={dump} download={`scheduler-${chosen}.json`} variant="default">
                  {t('scheduler.dump')}
                </Button>
              </Group>
              <FragmentationCard group={chosen} />
              <ReplayCard group={chosen} order={order} placement={placement} />
            </Stack>
          );
        }}
      </Query>
    </Page>
  );
}
export default gated(['superadmin'], SchedulerPage);
