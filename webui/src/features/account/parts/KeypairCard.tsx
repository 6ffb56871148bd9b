import { Button, Group, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Notice } from '../../../components/Notice';
import { Secret } from '../../../components/Secret';
import { useRotateKeypair } from '../queries';

/** Gives the keypair another secret, and shows it until the person leaves the page. */
export function KeypairCard() {
  const { t } = useTranslation('account');
  const rotate = useRotateKeypair();
  const [asks, setAsks] = useState(false);
  return (
    <Card title={t('keypair.title')}>
      <Stack gap="sm">
        <Text>{t('keypair.means')}</Text>
        {rotate.data && (
          <Notice tone="wait" role="status" title={t('keypair.once')}>
            <Stack gap="sm">
              <Secret label={t('fact.accessKey')} value={rotate.data.access_key} />
              <Secret label={t('keypair.secret')} value={rotate.data.secret_key} />
              <Text size="sm">{t('keypair.next')}</Text>
            </Stack>
          </Notice>
        )}
        <Group>
          <Button variant="default" onClick={() => setAsks(true)}>
            {t('keypair.rotate')}
          </Button>
        </Group>
      </Stack>
      <Confirm
        isOpen={asks}
        title={t('keypair.confirm')}
        action={t('keypair.rotate')}
        isBusy={rotate.isPending}
        error={rotate.error}
        onConfirm={() => rotate.mutate(undefined, { onSuccess: () => setAsks(false) })}
        onClose={() => setAsks(false)}
      >
        <Text>{t('keypair.loses')}</Text>
      </Confirm>
    </Card>
  );
}
