import { Button, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { useSetKeypairActive } from '../queries';

/** Makes a keypair active or inactive, and says what that means before. */
export function KeypairActions({ accessKey, isActive }: { accessKey: string; isActive: boolean }) {
  const { t } = useTranslation('people');
  const change = useSetKeypairActive();
  const [asks, setAsks] = useState(false);
  const wanted = isActive ? 'inactive' : 'active';
  const title = t(`act.${wanted}Name`, { email: accessKey });
  return (
    <>
      <Button size="compact-xs" variant="default" onClick={() => setAsks(true)} aria-label={title}>
        {t(`act.${wanted}`)}
      </Button>
      {asks && (
        <Confirm
          isOpen
          title={title}
          action={t(`act.${wanted}`)}
          isDangerous={isActive}
          isBusy={change.isPending}
          error={change.error}
          onConfirm={() => change.mutate({ accessKey, isActive: !isActive }, { onSuccess: () => setAsks(false) })}
          onClose={() => setAsks(false)}
        >
          <Text>{t(`keypair.${wanted}Means`)}</Text>
        </Confirm>
      )}
    </>
  );
}
