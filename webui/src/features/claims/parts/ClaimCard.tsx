import { Button, Group, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { secondsText } from '../../../api/amounts';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Copy } from '../../../components/Copy';
import { Facts } from '../../../components/Facts';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { Slots } from '../../../components/Slots';
import { useClaim, useDeleteClaim, useReleaseClaim } from '../queries';
import { type Claim, devicesOf, isReleasable } from '../rules';
import { ClaimStatus } from './ClaimStatus';

function ReleaseDialog({ claim, onClose }: { claim: Claim; onClose: () => void }) {
  const { t } = useTranslation('claims');
  const release = useReleaseClaim();
  return (
    <Confirm
      isOpen
      title={t('release.title', { name: claim.name })}
      action={t('release.action')}
      isBusy={release.isPending}
      error={release.error}
      onConfirm={() => release.mutate(claim.id, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('release.loses', { devices: devicesOf(claim).join(', ') })}</Text>
    </Confirm>
  );
}

function DeleteDialog({ claim, onClose, onGone }: { claim: Claim; onClose: () => void; onGone: () => void }) {
  const { t } = useTranslation('claims');
  const remove = useDeleteClaim();
  return (
    <Confirm
      isOpen
      title={t('delete.title', { name: claim.name })}
      action={t('delete.action')}
      name={claim.name}
      isBusy={remove.isPending}
      error={remove.error}
      onConfirm={() =>
        remove.mutate(claim.id, { onSuccess: ({ status }) => (status === 'DELETED' ? onGone() : onClose()) })
      }
      onClose={onClose}
    >
      <Text>
        {claim.sessions.length === 0 ? t('delete.loses') : t('delete.later', { count: claim.sessions.length })}
      </Text>
    </Confirm>
  );
}

function Details({ claim }: { claim: Claim }) {
  const { t } = useTranslation('claims');
  return (
    <Facts
      rows={[
        [t('column.status'), <ClaimStatus key="status" claim={claim} />],
        [t('fact.reason'), claim.status_info],
        [t('column.slots'), <Slots key="slots" amounts={claim.requested_slots} />],
        [t('fact.requests'), claim.device_requests.join('; ')],
        [t('column.devices'), devicesOf(claim).join(', ')],
        [t('fact.agent'), claim.agent],
        [
          t('column.sessions'),
          claim.sessions.length === 0 ? null : (
            <Stack key="sessions" gap={2}>
              {claim.sessions.map(({ id, name, status }) => (
                <span key={id}>
                  <AnchorLink to="/sessions/$id" params={{ id }}>
                    {name}
                  </AnchorLink>{' '}
                  {status}
                </span>
              ))}
            </Stack>
          ),
        ],
        [t('fact.owner'), claim.user_email],
        [t('fact.project'), `${claim.domain_name} / ${claim.group_name}`],
        [t('fact.group'), claim.scaling_group],
        [t('fact.idleTimeout'), claim.idle_timeout === null ? t('fact.noTimeout') : secondsText(claim.idle_timeout)],
        [t('fact.idleSince'), claim.idle_since && <RelativeTime key="idle" at={claim.idle_since} />],
        [t('column.created'), <RelativeTime key="created" at={claim.created_at} />],
        [
          t('fact.use'),
          <span key="use">
            <code>--claim {claim.name}</code> <Copy value={`--claim ${claim.name}`} label={t('fact.copyUse')} />
          </span>,
        ],
      ]}
    />
  );
}

/** One claim: what it holds, for whom, and the acts on it. */
export function ClaimCard({ id, onGone }: { id: string; onGone: () => void }) {
  const { t } = useTranslation('claims');
  const query = useClaim(id);
  const [dialog, setDialog] = useState<'release' | 'delete' | null>(null);
  const close = () => setDialog(null);
  return (
    <Card title={query.data?.name ?? t('one')}>
      <Query query={query}>
        {(claim) => (
          <Stack>
            <Details claim={claim} />
            <Group>
              {isReleasable(claim) && (
                <Button variant="default" onClick={() => setDialog('release')}>
                  {t('release.action')}
                </Button>
              )}
              {!claim.is_deleting && claim.status !== 'DELETED' && (
                <Button variant="default" onClick={() => setDialog('delete')}>
                  {t('delete.action')}
                </Button>
              )}
            </Group>
            {dialog === 'release' && <ReleaseDialog claim={claim} onClose={close} />}
            {dialog === 'delete' && <DeleteDialog claim={claim} onClose={close} onGone={onGone} />}
          </Stack>
        )}
      </Query>
    </Card>
  );
}
