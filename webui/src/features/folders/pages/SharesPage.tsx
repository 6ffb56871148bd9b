import { Button, Group, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { Crumbs } from '../../../components/TabbedPage';
import {
  type Invitation,
  type Share,
  useAmendInvitation,
  useOwnShares,
  useSentInvitations,
  useSetShare,
  useWithdrawInvitation,
} from '../queries';
import { otherPermission, permissionOf } from '../rules';

interface ActionsProps {
  who: string;
  folder: string;
  permission: string;
  isBusy: boolean;
  onPermission: () => void;
  onEnd: () => void;
  end: 'share.end' | 'sent.withdraw';
}

function Actions({ who, folder, permission, isBusy, onPermission, onEnd, end }: ActionsProps) {
  const { t } = useTranslation('folders');
  const change = t(otherPermission(permission) === 'rw' ? 'share.allowWriting' : 'share.onlyReading');
  return (
    <Group gap={4} wrap="nowrap">
      <Button
        size="compact-xs"
        variant="default"
        disabled={isBusy}
        aria-label={t('shares.actOf', { act: change, who, folder })}
        onClick={onPermission}
      >
        {change}
      </Button>
      <Button
        size="compact-xs"
        variant="default"
        disabled={isBusy}
        aria-label={t('shares.actOf', { act: t(end), who, folder })}
        onClick={onEnd}
      >
        {t(end)}
      </Button>
    </Group>
  );
}

function FolderLink({ id, name }: { id: string; name: string }) {
  return (
    <AnchorLink to="/folders/$id" params={{ id }}>
      {name}
    </AnchorLink>
  );
}

function Shares() {
  const { t } = useTranslation('folders');
  const change = useSetShare();
  const [ended, setEnded] = useState<Share | null>(null);
  const close = () => {
    change.reset();
    setEnded(null);
  };
  return (
    <Card title={t('shares.mine')}>
      <Query query={useOwnShares()}>
        {(shares) => (
          <SimpleTable
            label={t('shares.mine')}
            rows={shares}
            idOf={(share) => `${share.vfolder_id} ${share.shared_to.uuid}`}
            columns={[
              {
                label: t('one'),
                cell: (share) => <FolderLink id={share.vfolder_id} name={share.vfolder_name} />,
              },
              { label: t('shares.with'), cell: (share) => share.shared_to.email },
              { label: t('column.access'), cell: (share) => t(`access.${permissionOf(share.perm)}`) },
              {
                label: t('column.actions'),
                cell: (share) => (
                  <Actions
                    who={share.shared_to.email}
                    folder={share.vfolder_name}
                    permission={share.perm}
                    isBusy={change.isPending}
                    end="share.end"
                    onPermission={() =>
                      change.mutate({
                        id: share.vfolder_id,
                        user: share.shared_to.uuid,
                        permission: otherPermission(share.perm),
                      })
                    }
                    onEnd={() => setEnded(share)}
                  />
                ),
              },
            ]}
          />
        )}
      </Query>
      {change.isError && ended === null && <ProblemAlert error={change.error} />}
      <Confirm
        isOpen={ended !== null}
        title={t('shares.endTitle', { who: ended?.shared_to.email, folder: ended?.vfolder_name })}
        action={t('share.end')}
        isBusy={change.isPending}
        error={change.error}
        onConfirm={() =>
          change.mutate(
            { id: ended?.vfolder_id ?? '', user: ended?.shared_to.uuid ?? '', permission: null },
            { onSuccess: close },
          )
        }
        onClose={close}
      >
        <Text>{t('shares.endLoses')}</Text>
      </Confirm>
    </Card>
  );
}

function SentInvitations() {
  const { t } = useTranslation('folders');
  const amend = useAmendInvitation();
  const withdraw = useWithdrawInvitation();
  const [ended, setEnded] = useState<Invitation | null>(null);
  const close = () => {
    withdraw.reset();
    setEnded(null);
  };
  return (
    <Card title={t('sent.title')}>
      <Query query={useSentInvitations()}>
        {(invitations) => (
          <SimpleTable
            label={t('sent.title')}
            rows={invitations}
            idOf={({ id }) => id}
            columns={[
              { label: t('one'), cell: (item) => <FolderLink id={item.vfolder_id} name={item.vfolder_name} /> },
              { label: t('sent.to'), cell: ({ invitee }) => invitee },
              { label: t('column.access'), cell: ({ perm }) => t(`access.${permissionOf(perm)}`) },
              {
                label: t('column.actions'),
                cell: (item) => (
                  <Actions
                    who={item.invitee}
                    folder={item.vfolder_name}
                    permission={item.perm}
                    isBusy={amend.isPending || withdraw.isPending}
                    end="sent.withdraw"
                    onPermission={() => amend.mutate({ id: item.id, permission: otherPermission(item.perm) })}
                    onEnd={() => setEnded(item)}
                  />
                ),
              },
            ]}
          />
        )}
      </Query>
      {amend.isError && <ProblemAlert error={amend.error} />}
      <Confirm
        isOpen={ended !== null}
        title={t('sent.withdrawTitle', { who: ended?.invitee, folder: ended?.vfolder_name })}
        action={t('sent.withdraw')}
        isBusy={withdraw.isPending}
        error={withdraw.error}
        onConfirm={() => withdraw.mutate(ended?.id ?? '', { onSuccess: close })}
        onClose={close}
      >
        <Text>{t('sent.withdrawMeans')}</Text>
      </Confirm>
    </Card>
  );
}

/** With whom the folders of the person are shared, and who is invited to them. */
export function SharesPage() {
  const { t } = useTranslation('folders');
  return (
    <>
      <Crumbs
        list={
          <AnchorLink to="/folders" size="sm">
            {t('title')}
          </AnchorLink>
        }
        here={t('shares.title')}
      />
      <Page title={t('shares.title')}>
        <Shares />
        <SentInvitations />
      </Page>
    </>
  );
}
export default SharesPage;
