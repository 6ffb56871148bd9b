import { ActionIcon, Button, Group, Menu, Text } from '@mantine/core';
import { IconDots } from '@tabler/icons-react';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { AccessKeyForm } from '../editing/forms';
import { useRemove } from '../editing/queries';
import { useRotateKeypair, useSetKeypairActive } from '../queries';
import { KeypairSecrets } from './NewKeypairDialog';

interface DialogProps {
  accessKey: string;
  isActive: boolean;
  onClose: () => void;
}

function StatusDialog({ accessKey, isActive, onClose }: DialogProps) {
  const { t } = useTranslation('people');
  const change = useSetKeypairActive();
  const wanted = isActive ? 'inactive' : 'active';
  return (
    <Confirm
      isOpen
      title={t(`act.${wanted}Name`, { email: accessKey })}
      action={t(`act.${wanted}`)}
      isDangerous={isActive}
      isBusy={change.isPending}
      error={change.error}
      onConfirm={() => change.mutate({ accessKey, isActive: !isActive }, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t(`keypair.${wanted}Means`)}</Text>
    </Confirm>
  );
}

function RotateDialog({ accessKey, onClose }: DialogProps) {
  const { t } = useTranslation('people');
  const rotate = useRotateKeypair();
  const keypair = rotate.data?.rotate_keypair?.keypair;
  if (keypair)
    return <KeypairSecrets title={t('keypair.rotated', { accessKey })} keypair={keypair} onClose={onClose} />;
  return (
    <Confirm
      isOpen
      title={t('keypair.rotateName', { accessKey })}
      action={t('keypair.rotate')}
      isBusy={rotate.isPending}
      error={rotate.error}
      onConfirm={() => rotate.mutate(accessKey)}
      onClose={onClose}
    >
      <Text>{t('keypair.rotateMeans')}</Text>
    </Confirm>
  );
}

function DeleteDialog({ accessKey, onClose }: DialogProps) {
  const { t } = useTranslation('people');
  const remove = useRemove('accessKey');
  return (
    <Confirm
      isOpen
      title={t('keypair.deleteName', { accessKey })}
      action={t('keypair.delete')}
      isBusy={remove.isPending}
      error={remove.error}
      onConfirm={() => remove.mutate(accessKey, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('keypair.deleteMeans')}</Text>
    </Confirm>
  );
}

const ChangeDialog = ({ accessKey, onClose }: DialogProps) => <AccessKeyForm accessKey={accessKey} onClose={onClose} />;

const dialogs = { status: StatusDialog, change: ChangeDialog, rotate: RotateDialog, delete: DeleteDialog };

/** What administrators may do with a keypair. Each act says what it means before. */
export function KeypairActions({ accessKey, isActive }: { accessKey: string; isActive: boolean }) {
  const { t } = useTranslation('people');
  const [asked, setAsked] = useState<keyof typeof dialogs | null>(null);
  const wanted = isActive ? 'inactive' : 'active';
  const Dialog = asked === null ? null : dialogs[asked];
  return (
    <Group gap={4} wrap="nowrap">
      <Button
        size="compact-xs"
        variant="default"
        onClick={() => setAsked('status')}
        aria-label={t(`act.${wanted}Name`, { email: accessKey })}
      >
        {t(`act.${wanted}`)}
      </Button>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon variant="subtle" color="gray" aria-label={t('act.moreName', { email: accessKey })}>
            <IconDots size={16} aria-hidden />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Item onClick={() => setAsked('change')}>{t('act.change')}</Menu.Item>
          <Menu.Item onClick={() => setAsked('rotate')}>{t('keypair.rotate')}</Menu.Item>
          <Menu.Item onClick={() => setAsked('delete')}>{t('keypair.delete')}</Menu.Item>
        </Menu.Dropdown>
      </Menu>
      {Dialog !== null && <Dialog accessKey={accessKey} isActive={isActive} onClose={() => setAsked(null)} />}
    </Group>
  );
}
