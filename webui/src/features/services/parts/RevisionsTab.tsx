import { Button, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { type ServiceDetails, useRollback } from '../queries';
import { isLive, isRollingOut, sharesOf } from '../rules';
import { RolloutCard } from './RolloutCard';
import { ServiceStatus } from './ServiceStatus';

/** The revisions, newest first, with their shares in the requests; the one that is rolled out can be rolled back. */
export function RevisionsTab({ service }: { service: ServiceDetails }) {
  const { t } = useTranslation('services');
  const [asks, setAsks] = useState(false);
  const rollback = useRollback(service.endpoint_id);
  const { revisions } = service;
  const shares = sharesOf(revisions.map((revision) => revision.weight));
  const shareById = new Map(revisions.map((revision, index) => [revision.id, shares[index] ?? null]));
  // The manager rolls back the newest that is on its way, and a first revision has no other to return to.
  const target = isLive(service.status) ? revisions.find((revision) => isRollingOut(revision.status)) : undefined;
  const rolling = revisions.length > 1 ? target : undefined;
  const close = () => {
    rollback.reset();
    setAsks(false);
  };
  return (
    <Stack>
      <RolloutCard service={service} />
      <SimpleTable
        label={t('tab.revisions')}
        rows={revisions}
        idOf={(revision) => revision.id}
        minWidth={720}
        columns={[
          { label: t('revision.number'), cell: (revision) => revision.number },
          {
            label: t('column.status'),
            cell: (revision) => <ServiceStatus status={revision.status} reason={revision.reason} />,
          },
          {
            label: t('revision.traffic'),
            cell: (revision) => {
              const share = shareById.get(revision.id) ?? null;
              return share === null ? '–' : `${share} %`;
            },
          },
          { label: t('fact.image'), cell: (revision) => revision.image },
          { label: t('fact.model'), cell: (revision) => revision.model_name },
          { label: t('column.created'), cell: (revision) => <RelativeTime at={revision.created_at} /> },
          {
            label: t('revision.actions'),
            cell: (revision) =>
              revision.id === rolling?.id ? (
                <Button size="compact-xs" variant="default" onClick={() => setAsks(true)}>
                  {t('rollback.open')}
                </Button>
              ) : null,
          },
        ]}
      />
      {rolling && (
        <Confirm
          isOpen={asks}
          title={t('rollback.title', { number: rolling.number })}
          action={t('rollback.action')}
          isBusy={rollback.isPending}
          error={rollback.error}
          onConfirm={() => rollback.mutate(undefined, { onSuccess: close })}
          onClose={close}
        >
          <Text>{t('rollback.detail')}</Text>
        </Confirm>
      )}
    </Stack>
  );
}
