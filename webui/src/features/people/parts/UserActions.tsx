import { ActionIcon, Button, Group, Menu, Text } from '@mantine/core';
import { IconDots } from '@tabler/icons-react';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { Confirm } from '../../../components/Confirm';
import { PersonForm } from '../editing/forms';
import { useResetTotp, useSetUserStatus } from '../queries';
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
  const change = useSetUserStatus();
  const isActive = status === 'active';
  const wanted = isActive ? 'inactive' : 'active';
  return (
    <Confirm
      isOpen
      title={t(`act.${wanted}Name`, { email })}
      action={t(`act.${wanted}`)}
      isDangerous={isActive}
      isBusy={change.isPending}
      error={change.error}
      onConfirm={() => change.mutate({ email, status: wanted }, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t(`act.${wanted}Means`)}</Text>
    </Confirm>
  );
}

function TotpDialog({ user: { email }, onClose }: DialogProps) {
  const { t } = useTranslation('people');
  const reset = useResetTotp();
  return (
    <Confirm
      isOpen
      title={t('act.totpName', { email })}
      action={t('act.totp')}
      isBusy={reset.isPending}
      error={reset.error}
      onConfirm={() => reset.mutate(email, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('act.totpMeans')}</Text>
    </Confirm>
  );
}

const ChangeDialog = ({ user, onClose }: DialogProps) => <PersonForm email={user.email} onClose={onClose} />;

const dialogs = {
  change: ChangeDialog,
  status: StatusDialog,
  totp: TotpDialog,
  keypair: NewKeypairDialog,
  purge: PurgeDialog,
};

/** What administrators may do with a user. Each act says what it means before. */
export function UserActions({ user }: { user: UserOfRow }) {
  const { t } = useTranslation('people');
  const [asked, setAsked] = useState<keyof typeof dialogs | null>(null);
  const isSuperadmin = useRole() === 'superadmin';
  const { email } = user;
  const wanted = user.status === 'active' ? 'inactive' : 'active';
  const Dialog = asked === null ? null : dialogs[asked];
  return (
    <Group gap={4} wrap="nowrap">
      <Button
        size="compact-xs"
        variant="default"
        onClick={() => setAsked('status')}
        aria-label={t(`act.${wanted}Name`, { email })}
      >
        {t(`act.${wanted}`)}
      </Button>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon variant="subtle" color="gray" aria-label={t('act.moreName', { email })}>
            <IconDots size={16} aria-hidden />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Item onClick={() => setAsked('change')}>{t('act.change')}</Menu.Item>
          <Menu.Item onClick={() => setAsked('keypair')}>{t('act.keypair')}</Menu.Item>
          {user.hasTotp && <Menu.Item onClick={() => setAsked('totp')}>{t('act.totp')}</Menu.Item>}
          {isSuperadmin && <Menu.Item onClick={() => setAsked('purge')}>{t('act.purge')}</Menu.Item>}
        </Menu.Dropdown>
      </Menu>
      {Dialog !== null && <Dialog user={user} onClose={() => setAsked(null)} />}
    </Group>
  );
}
