import { List, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { Query } from '../../../components/Query';
import { Question } from '../../../components/Question';
import { RowActions } from '../../../components/RowActions';
import { PersonForm } from '../editing/forms';
import { useDeleteUser } from '../editing/queries';
import { useBelongings, useResetTotp, useSetUserStatus } from '../queries';
import { NewKeypairDialog } from './NewKeypairDialog';
import { PurgeDialog } from './PurgeDialog';

export interface UserOfRow {
  uuid: string;
  email: string;
  status: string;
  hasTotp: boolean;
}

interface DialogProps {
  user: UserOfRow;
  onClose: () => void;
}

function StatusDialog({ user: { email, status }, onClose }: DialogProps) {
  const { t } = useTranslation('people');
  const isActive = status === 'active';
  const wanted: 'active' | 'inactive' = isActive ? 'inactive' : 'active';
  return (
    <Question
      act={useSetUserStatus()}
      input={{ email, status: wanted }}
      title={t(`act.${wanted}Name`, { email })}
      action={t(`act.${wanted}`)}
      isDangerous={isActive}
      onClose={onClose}
    >
      <Text>{t(`act.${wanted}Means`)}</Text>
    </Question>
  );
}

function TotpDialog({ user: { email }, onClose }: DialogProps) {
  const { t } = useTranslation('people');
  return (
    <Question
      act={useResetTotp()}
      input={email}
      title={t('act.totpName', { email })}
      action={t('act.totp')}
      onClose={onClose}
    >
      <Text>{t('act.totpMeans')}</Text>
    </Question>
  );
}

function DeleteDialog({ user: { uuid, email }, onClose }: DialogProps) {
  const { t } = useTranslation('editing');
  const { t: people } = useTranslation('people');
  const belongings = useBelongings(uuid);
  return (
    <Question
      act={useDeleteUser()}
      input={email}
      title={t('delete.title', { email })}
      action={t('delete.action')}
      onClose={onClose}
    >
      <Text>{t('delete.means')}</Text>
      <Query query={belongings} rows={2}>
        {({ sessions, keypairs }) => (
          <List>
            <List.Item>{people('purge.sessions', { count: sessions })}</List.Item>
            <List.Item>{t('delete.keypairs', { count: keypairs })}</List.Item>
          </List>
        )}
      </Query>
      <Text>{t('delete.kept')}</Text>
    </Question>
  );
}

/** What administrators may do with a user. Each act says what it means before. */
export function UserActions({ user }: { user: UserOfRow }) {
  const { t } = useTranslation('people');
  const { t: editing } = useTranslation('editing');
  const isSuperadmin = useRole() === 'superadmin';
  const { email } = user;
  const wanted = user.status === 'active' ? 'inactive' : 'active';
  const others = [
    {
      label: t('act.change'),
      isThere: true,
      Dialog: ({ onClose }: DialogProps) => <PersonForm {...{ email, onClose }} />,
    },
    { label: t('act.keypair'), isThere: true, Dialog: NewKeypairDialog },
    { label: t('act.totp'), isThere: user.hasTotp, Dialog: TotpDialog },
    { label: editing('delete.action'), isThere: user.status !== 'deleted', Dialog: DeleteDialog },
    { label: t('act.purge'), isThere: isSuperadmin, Dialog: PurgeDialog },
  ];
  return (
    <RowActions
      first={{ label: t(`act.${wanted}`), dialog: (close) => <StatusDialog user={user} onClose={close} /> }}
      firstLabel={t(`act.${wanted}Name`, { email })}
      moreLabel={t('act.moreName', { email })}
      others={others
        .filter(({ isThere }) => isThere)
        .map(({ label, Dialog }) => ({ label, dialog: (close) => <Dialog user={user} onClose={close} /> }))}
    />
  );
}
