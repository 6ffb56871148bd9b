import { Button, Checkbox, Group, Stack, Text } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { Confirm } from '../../../components/Confirm';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { Crumbs } from '../../../components/TabbedPage';
import {
  arraysPageSize,
  arrayToneOf,
  failedOf,
  hasEnded,
  type SessionArray,
  useArrays,
  useCancelArray,
  useRetryArray,
} from '../arrays';

interface DialogProps {
  array: SessionArray;
  onClose: () => void;
}

function CancelDialog({ array, onClose }: DialogProps) {
  const { t } = useTranslation('sessionWork');
  const cancel = useCancelArray();
  const [forced, setForced] = useState(false);
  return (
    <Confirm
      isOpen
      title={t('arrays.cancelTitle', { name: array.name })}
      action={t('arrays.cancel')}
      isBusy={cancel.isPending}
      error={cancel.error}
      onConfirm={() => cancel.mutate({ id: array.id, forced }, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('arrays.cancelLoses')}</Text>
      <Checkbox
        label={t('arrays.forced')}
        checked={forced}
        onChange={(event) => setForced(event.currentTarget.checked)}
      />
    </Confirm>
  );
}

function RetryDialog({ array, onClose }: DialogProps) {
  const { t } = useTranslation('sessionWork');
  const retry = useRetryArray();
  return (
    <Confirm
      isOpen
      title={t('arrays.retryTitle', { name: array.name })}
      action={t('arrays.retry')}
      isDangerous={false}
      isBusy={retry.isPending}
      error={retry.error}
      onConfirm={() => retry.mutate(array.id, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('arrays.retryMeans', { count: failedOf(array) })}</Text>
    </Confirm>
  );
}

/** Arrays of batch sessions: how many elements are where, with the acts on all of them. */
export function ArraysPage() {
  const { t } = useTranslation('sessionWork');
  const { t: common } = useTranslation('sessions');
  const { page = 1, all = false } = useSearch({ strict: false }) as { page?: number; all?: boolean };
  const navigate = useNavigate();
  const query = useArrays(page, !all);
  const [asked, setAsked] = useState<{ dialog: typeof CancelDialog; array: SessionArray } | null>(null);
  const open = (search: { page?: number; all?: boolean }) => void navigate({ to: '/sessions/arrays', search });
  const ofAll = all ? { all: true } : {};
  return (
    <>
      <Crumbs
        list={
          <AnchorLink to="/sessions" size="sm">
            {common('title')}
          </AnchorLink>
        }
        here={t('arrays.title')}
      />
      <Page title={t('arrays.title')}>
        <Checkbox
          label={t('arrays.ended')}
          checked={all}
          onChange={(event) => open(event.currentTarget.checked ? { all: true } : {})}
        />
        <Query query={query}>
          {({ items, totalCount }) => (
            <Stack>
              {items.length === 0 ? (
                <EmptyState title={t(all ? 'arrays.none' : 'arrays.noneLive')}>{t('arrays.hint')}</EmptyState>
              ) : (
                <SimpleTable
                  label={t('arrays.title')}
                  rows={items}
                  idOf={({ id }) => id}
                  minWidth={720}
                  columns={[
                    {
                      label: common('column.name'),
                      cell: ({ id, name }) => (
                        <AnchorLink to="/sessions" search={{ q: `array_id == "${id}"`, status: 'all' }}>
                          {name}
                        </AnchorLink>
                      ),
                    },
                    {
                      label: common('column.status'),
                      cell: ({ status }) => <StatusBadge tone={arrayToneOf(status)} label={status} />,
                    },
                    {
                      label: t('arrays.elements'),
                      cell: ({ size, counts }) =>
                        `${size}: ${Object.entries(counts)
                          .map(([status, count]) => `${count} ${status}`)
                          .join(', ')}`,
                    },
                    { label: t('arrays.parallel'), cell: ({ maxParallel }) => maxParallel ?? '∞' },
                    { label: common('column.image'), cell: ({ image }) => image },
                    { label: common('column.created'), cell: ({ createdAt }) => <RelativeTime at={createdAt} /> },
                    {
                      label: t('arrays.actions'),
                      cell: (array) => (
                        <Group gap={4} wrap="nowrap">
                          {!hasEnded(array) && (
                            <Button
                              size="compact-xs"
                              variant="default"
                              aria-label={t('arrays.cancelOf', { name: array.name })}
                              onClick={() => setAsked({ dialog: CancelDialog, array })}
                            >
                              {t('arrays.cancel')}
                            </Button>
                          )}
                          {failedOf(array) > 0 && (
                            <Button
                              size="compact-xs"
                              variant="default"
                              aria-label={t('arrays.retryOf', { name: array.name })}
                              onClick={() => setAsked({ dialog: RetryDialog, array })}
                            >
                              {t('arrays.retry')}
                            </Button>
                          )}
                        </Group>
                      ),
                    },
                  ]}
                />
              )}
              {totalCount > arraysPageSize && (
                <Group>
                  <Button
                    variant="default"
                    size="xs"
                    disabled={page <= 1}
                    onClick={() => open({ ...ofAll, ...(page > 2 ? { page: page - 1 } : {}) })}
                  >
                    {t('arrays.newer')}
                  </Button>
                  <Button
                    variant="default"
                    size="xs"
                    disabled={page * arraysPageSize >= totalCount}
                    onClick={() => open({ ...ofAll, page: page + 1 })}
                  >
                    {t('arrays.older')}
                  </Button>
                </Group>
              )}
            </Stack>
          )}
        </Query>
        {asked !== null && <asked.dialog array={asked.array} onClose={() => setAsked(null)} />}
      </Page>
    </>
  );
}
export default ArraysPage;
