import { Button, Center, Paper, Stack, Text, Title } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useRouter, useSearch } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { boot } from '../../../api/boot';
import { keys } from '../../../api/keys';
import { signInByToken } from '../../../api/login';
import { AnchorLink } from '../../../components/AnchorLink';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { safeNext, tokenOf } from '../rules';

/** Logs somebody in whom another site has sent here with a token, when they say so: a link alone logs nobody in. */
export function TokenLoginPage() {
  const { t } = useTranslation('tokenLogin');
  const client = useQueryClient();
  const router = useRouter();
  const { next } = useSearch({ from: '/token-login' });
  const path = `${router.basepath.replace(/\/$/, '')}${safeNext(next)}`;
  const [token] = useState(() => tokenOf(window.location.search, window.location.hash));
  const login = useMutation({
    mutationFn: () => signInByToken(token),
    gcTime: 0,
    onSuccess: (made) => {
      client.clear();
      client.setQueryData(keys.login, made);
      router.history.replace(path);
    },
  });
  useEffect(() => {
    document.title = `${t('title')} · ${boot.siteName}`;
    // The token stays neither in the address nor in the history.
    const search = next === undefined ? '' : `?${new URLSearchParams({ next })}`;
    window.history.replaceState(window.history.state, '', `${window.location.pathname}${search}`);
  }, [t, next]);
  return (
    <Center component="main" mih="100vh" p="md">
      <Paper withBorder p="xl" bg="var(--app-surface)" maw={420}>
        <Stack>
          <Title order={1}>{t('title')}</Title>
          <Text>{t('detail')}</Text>
          {login.isError && <ProblemAlert error={login.error} />}
          {login.isError && <Text>{t('refused')}</Text>}
          <Button loading={login.isPending} disabled={login.isError} onClick={() => login.mutate()}>
            {t('submit')}
          </Button>
          <AnchorLink to="/login" search={next === undefined ? {} : { next }}>
            {t('back')}
          </AnchorLink>
        </Stack>
      </Paper>
    </Center>
  );
}
export default TokenLoginPage;
