import { Button, Group, Modal, Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { Secret } from '../../../components/Secret';
import { useCreateKeypair } from '../queries';

/** Shows the secret of a keypair once. */
export function KeypairSecrets({
  title,
  keypair,
  onClose,
}: {
  title: string;
  keypair: { access_key?: string | null; secret_key?: string | null };
  onClose: () => void;
}) {
  const { t } = useTranslation('people');
  const { t: common } = useTranslation('components');
  return (
    <Modal
      opened
      onClose={onClose}
      closeOnClickOutside={false}
      title={title}
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

/** Makes a further keypair of a user, and shows its secret once. */
export function NewKeypairDialog({ user: { email }, onClose }: { user: { email: string }; onClose: () => void }) {
  const { t } = useTranslation('people');
  const create = useCreateKeypair();
  const keypair = create.data?.create_keypair?.keypair;
  if (keypair) return <KeypairSecrets title={t('act.keypairMade', { email })} keypair={keypair} onClose={onClose} />;
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
