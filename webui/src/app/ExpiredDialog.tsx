import { Modal, Stack, Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { useSyncExternalStore } from 'react';
import { useTranslation } from 'react-i18next';
import { expiry } from '../api/expiry';
import { keys } from '../api/keys';
import type { Login } from '../api/login';
import { useMe } from '../api/me';
import { LoginForm } from '../features/login/LoginForm';

/** Asks for the password over the page, so that nothing on it is lost. Another person starts from an empty cache. */
export function ExpiredDialog() {
  const { t } = useTranslation('login');
  const isExpired = useSyncExternalStore(expiry.subscribe, expiry.isExpired);
  const client = useQueryClient();
  const me = useMe();
  const onLogin = (login: Login) => {
    const previous = client.getQueryData<Login | null>(keys.login);
    if (previous && previous.accessKey !== login.accessKey) {
      window.location.reload();
      return;
    }
    client.setQueryData(keys.login, login);
    expiry.renew();
  };
  return (
    <Modal
      opened={isExpired}
      onClose={() => undefined}
      withCloseButton={false}
      closeOnEscape={false}
      closeOnClickOutside={false}
      title={t('expired.title')}
      zIndex={1000}
    >
      <Stack>
        <Text>{t('expired.detail')}</Text>
        <LoginForm onLogin={onLogin} {...(me.data?.user?.email ? { username: me.data.user.email } : {})} />
      </Stack>
    </Modal>
  );
}
