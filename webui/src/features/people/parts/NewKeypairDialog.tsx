import { Button, Group, Modal, Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { Secret } from '../../../components/Secret';
import { useCreateKeypair } from '../queries';

/** Makes a further keypair of a user, and shows its secret once. */
export function NewKeypairDialog({ user: { email }, onClose }: { user: { email: string }; onClose: () => void }) {
  const { t } = useTranslation('people');
  const { t: common } = useTranslation('components');
  const create = useCreateKeypair();
  const keypair = create.data?.create_keypair?.keypair;
  if (keypair === null || keypair === undefined) {
    return (
      <Confirm
        isOpen
        title={t('act.keypairName', { email })}
        action={t('act.keypair')}
        isDangerous={false}
        isBusy={create.isPending}
        error={create.error}
        onConfirm={() => create.mutate(email)}
        onClose={onClose}
      >
        <Text>{t('act.keypairMeans')}</Text>
      </Confirm>
    );
  }
  return (
    <Modal
      opened
      onClose={onClose}
      closeOnClickOutside={false}
      title={t('act.keypairMade', { email })}
      closeButtonProps={{ 'aria-label': common('close') }}
    >
      <Stack>
        <Text>{t('act.keypairOnce')}</Text>
        <Secret label={t('column.accessKey')} value={keypair.access_key ?? ''} />
        <Secret label={t('secretKey')} value={keypair.secret_key ?? ''} />
        <Group justify="flex-end">
          <Button onClick={onClose}>{common('close')}</Button>
        </Group>
      </Stack>
    </Modal>
  );
}
