import { Checkbox, List, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { Query } from '../../../components/Query';
import { useBelongings, usePurgeUser } from '../queries';

/** Deletes a user for good, after what goes with the user was told and the address was typed. */
export function PurgeDialog({
  user: { uuid, email },
  onClose,
}: {
  user: { uuid: string; email: string };
  onClose: () => void;
}) {
  const { t } = useTranslation('people');
  const belongings = useBelongings(uuid);
  const purge = usePurgeUser();
  const [withShared, setWithShared] = useState(false);
  return (
    <Confirm
      isOpen
      title={t('act.purgeName', { email })}
      action={t('act.purge')}
      name={email}
      isBusy={purge.isPending}
      error={purge.error}
      onConfirm={() => purge.mutate({ email, withShared }, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('purge.means')}</Text>
      <Query query={belongings} rows={3}>
        {({ sessions, folders, keypairs }) => (
          <Stack gap="xs">
            <List>
              <List.Item>{t('purge.sessions', { count: sessions })}</List.Item>
              <List.Item>{t('purge.folders', { count: folders })}</List.Item>
              <List.Item>{t('purge.keypairs', { count: keypairs })}</List.Item>
            </List>
            <Checkbox
              label={t('purge.shared')}
              description={t('purge.sharedHint')}
              checked={withShared}
              onChange={(event) => setWithShared(event.currentTarget.checked)}
            />
          </Stack>
        )}
      </Query>
    </Confirm>
  );
}
