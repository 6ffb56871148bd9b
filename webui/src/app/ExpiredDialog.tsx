import { Modal, Stack, Text } from '@mantine/core';
import { type QueryClient, useQueryClient } from '@tanstack/react-query';
import { useEffect, useSyncExternalStore } from 'react';
import { useTranslation } from 'react-i18next';
import { expiry } from '../api/expiry';
import { keys } from '../api/keys';
import type { Login } from '../api/login';
import { useMe } from '../api/me';
import { forgetPerson } from '../api/personal';
import { LoginForm } from '../features/login/LoginForm';

/** Tells whether an access key is that of another person than the one of the page. */
function isOther(client: QueryClient, accessKey: string): boolean {
  const previous = client.getQueryData<Login | null>(keys.login);
  return previous != null && previous.accessKey !== accessKey;
}

/** Loads the page again; what the person before was sending ends first, so that none of it is sent by the next one. */
function startAnew(): void {
  forgetPerson();
  window.location.reload();
}

/**
 * Asks for the password over the page, so that nothing on it is lost.
 *
 * When another person logs in, here or in another tab, the page starts anew: its cookie is theirs from then on.
 */
export function ExpiredDialog() {
  const { t } = useTranslation('login');
  const isExpired = useSyncExternalStore(expiry.subscribe, expiry.isExpired);
  const client = useQueryClient();
  const me = useMe();
  useEffect(
    () =>
      expiry.onLogin((accessKey) => {
        if (isOther(client, accessKey)) startAnew();
        else expiry.settle();
      }),
    [client],
  );
  const onLogin = (login: Login) => {
    if (isOther(client, login.accessKey)) {
      startAnew();
      return;
    }
    client.setQueryData(keys.login, login);
    expiry.renew(login.accessKey);
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
