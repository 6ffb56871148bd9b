import { Button, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { useSetUserStatus } from '../queries';

/** Makes a user active or inactive, and says what that means before. */
export function UserActions({ email, status }: { email: string; status: string }) {
  const { t } = useTranslation('people');
  const change = useSetUserStatus();
  const [asks, setAsks] = useState(false);
  const isActive = status === 'active';
  const wanted = isActive ? 'inactive' : 'active';
  return (
    <>
      <Button
        size="compact-xs"
        variant="default"
        onClick={() => setAsks(true)}
        aria-label={t(`act.${wanted}Name`, { email })}
      >
        {t(`act.${wanted}`)}
      </Button>
      {asks && (
        <Confirm
          isOpen
          title={t(`act.${wanted}Name`, { email })}
          action={t(`act.${wanted}`)}
          isDangerous={isActive}
          isBusy={change.isPending}
          error={change.error}
          onConfirm={() => change.mutate({ email, status: wanted }, { onSuccess: () => setAsks(false) })}
          onClose={() => setAsks(false)}
        >
          <Text>{t(`act.${wanted}Means`)}</Text>
        </Confirm>
      )}
    </>
  );
}
