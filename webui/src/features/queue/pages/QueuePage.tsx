import '@mantine/core/styles/Pagination.css';
import { Anchor, Button, Group, Pagination, Select, Stack, Text } from '@mantine/core';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useMe } from '../../../api/me';
import { Card } from '../../../components/Card';
import { EmptyState } from '../../../components/EmptyState';
import { Facts } from '../../../components/Facts';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { Slots } from '../../../components/Slots';
import { StatusBadge } from '../../../components/StatusBadge';
import { type QueueView, queuePageSize, useQueue, useQueueGroups, useShares, useWhy } from '../queries';
import { pagesOf, percent, toneOfRemedy } from '../rules';
import classes from './QueuePage.module.css';

function Why({ id }: { id: string }) {
  const { t } = useTranslation('queue');
  const query = useWhy(id);
  return (
    <Query query={query} rows={3}>
      {(why) => (
        <Facts
          rows={[
            [
              t('why.verdict'),
              <span key="verdict" lang="en">
                {why.message}
              </span>,
            ],
            [t('why.place'), t('why.placeOf', { position: why.position ?? '–', waiting: why.waiting ?? 0 })],
            [
              t('why.heldBy'),
              why.holders?.count
                ? [
                    ...(why.holders.visible ?? []).map((each) => each.name),
                    ...(why.holders.count > (why.holders.visible ?? []).length
                      ? [t('why.others', { count: why.holders.count - (why.holders.visible ?? []).length })]
                      : []),
                  ].join(', ')
                : null,
            ],
            [t('why.reserved'), why.reserved ? t('why.agents', { count: why.reserved.count }) : null],
            [
              t('why.agentsNow'),
              t('why.startable', { startable: why.agents?.startable ?? 0, total: why.agents?.total ?? 0 }),
            ],
          ]}
        />
      )}
    </Query>
  );
}

function QueueTable({ view }: { view: QueueView }) {
  const { t, i18n } = useTranslation(['queue', 'sessions']);
  const [open, setOpen] = useState<string | null>(null);
  const reasonName = (reason: string | null | undefined) => {
    if (!reason) return t('queue:starts');
    const key = `reason.${reason}`;
    return i18n.exists(key, { ns: 'sessions' }) ? t(`sessions:${key}` as 'sessions:reason.not-yet') : reason;
  };
  return (
    <>
      <SimpleTable
        label={t('queue:title')}
        rows={view.items}
        idOf={(entry) => entry.id}
        minWidth={760}
        columns={[
          { label: t('queue:column.place'), cell: (entry) => <b>{entry.position}</b> },
          {
            label: t('queue:column.name'),
            cell: (entry) => (
              <Anchor component={Link} to="/sessions/$id" params={{ id: entry.id } as never}>
                {entry.name}
              </Anchor>
            ),
          },
          { label: t('queue:column.owner'), cell: (entry) => entry.user_email },
          {
            label: t('queue:column.resources'),
            cell: (entry) => (
              <>
                <Slots amounts={entry.requested_slots} />
                {entry.cluster_size > 1 && <Text size="xs">{t('queue:kernels', { count: entry.cluster_size })}</Text>}
              </>
            ),
          },
          { label: t('queue:column.since'), cell: (entry) => <RelativeTime at={entry.enqueued_at} /> },
          {
            label: t('queue:column.reason'),
            cell: (entry) => (
              <Stack gap={2} align="flex-start">
                <StatusBadge tone={toneOfRemedy(entry.remedy)} label={reasonName(entry.reason)} />
                <Text size="xs" lang="en">
                  {entry.message}
                </Text>
              </Stack>
            ),
          },
          {
            label: t('queue:column.more'),
            cell: (entry) => (
              <Button
                size="compact-sm"
                variant="default"
                aria-expanded={open === entry.id}
                onClick={() => setOpen(open === entry.id ? null : entry.id)}
                aria-label={t('queue:whyOf', { name: entry.name })}
              >
                {t('queue:whyShort')}
              </Button>
            ),
          },
        ]}
      />
      {open !== null && view.items.some((entry) => entry.id === open) && (
        <Card title={t('queue:whyOf', { name: view.items.find((entry) => entry.id === open)?.name ?? '' })}>
          <Why id={open} />
        </Card>
      )}
    </>
  );
}

function Shares({ group }: { group: string }) {
  const { t, i18n } = useTranslation('queue');
  const query = useShares(group);
  return (
    <Card title={t('shares.title')}>
      <Query query={query}>
        {(view) => (
          <Stack gap="xs">
            <Text size="sm">
              {t(view.order === 'fair-share' || view.order === 'drf' ? 'shares.decide' : 'shares.inform', {
                order: view.order,
              })}
            </Text>
            <SimpleTable
              label={t('shares.table')}
              rows={view.items}
              idOf={(item) => item.scope}
              columns={[
                {
                  label: t('shares.who'),
                  cell: (item) => (
                    <span className={classes.scope} data-level={item.level} data-own={item.is_own}>
                      {item.name}
                    </span>
                  ),
                },
                { label: t('shares.level'), cell: (item) => t(`shares.${item.level}` as 'shares.user') },
                { label: t('shares.weight'), cell: (item) => item.weight },
                {
                  label: t('shares.share'),
                  cell: (item) => (
                    <span className={classes.share}>
                      <span className={classes.bar} style={{ width: `${Math.min(100, item.share * 100)}%` }} />
                      <span>{percent(item.share, i18n.language)}</span>
                    </span>
                  ),
                },
                { label: t('shares.weighted'), cell: (item) => percent(item.weighted_share, i18n.language) },
                { label: t('shares.now'), cell: (item) => <Slots amounts={item.occupied} /> },
              ]}
            />
          </Stack>
        )}
      </Query>
    </Card>
  );
}

/** Who waits in a resource group, in the order of their turn, and the shares that the caller may see. */
export function QueuePage() {
  const { t } = useTranslation('queue');
  const search = useSearch({ strict: false }) as { group?: string; page?: number };
  const navigate = useNavigate();
  const me = useMe();
  const project = me.data?.user?.groups?.[0]?.name ?? '';
  const groups = useQueueGroups(project);
  const group = search.group ?? groups.data?.[0] ?? '';
  const page = Math.max(1, Number(search.page ?? 1) || 1);
  const query = useQueue(group, (page - 1) * queuePageSize);
  const go = (next: { group?: string; page?: number }) =>
    void navigate({ to: '.', search: { ...(group && { group }), ...next } as never });
  return (
    <Page
      title={t('title')}
      actions={
        <Select
          aria-label={t('group')}
          data={groups.data ?? []}
          value={group || null}
          onChange={(name) => go(name ? { group: name } : {})}
          allowDeselect={false}
        />
      }
    >
      <Query query={query}>
        {(view) => (
          <Stack>
            <Text>
              {t('summary', { waiting: view.waiting, order: view.order })}{' '}
              {view.waiting > view.total_count && t('hidden', { count: view.waiting - view.total_count })}
            </Text>
            {view.items.length === 0 ? (
              <EmptyState title={t('empty')}>{view.waiting > 0 ? t('emptyOfYours') : t('emptyHint')}</EmptyState>
            ) : (
              <QueueTable view={view} />
            )}
            {pagesOf(view.total_count, queuePageSize) > 1 && (
              <Group justify="center">
                <Pagination
                  total={pagesOf(view.total_count, queuePageSize)}
                  value={page}
                  onChange={(next) => go({ page: next })}
                  getItemProps={(number) => ({ 'aria-label': t('page', { number }) })}
                  getControlProps={(control) => ({ 'aria-label': t(`control.${control}` as 'control.next') })}
                />
              </Group>
            )}
          </Stack>
        )}
      </Query>
      {group && <Shares group={group} />}
    </Page>
  );
}
export default QueuePage;
