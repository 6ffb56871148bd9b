import { Anchor, Center, Group, Paper, Stack, Title } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { useRouter, useSearch } from '@tanstack/react-router';
import { useEffect } from 'react';
import { useTranslation } from 'react-i18next';
import { boot } from '../../../api/boot';
import { keys } from '../../../api/keys';
import { changeLanguage, type Language, languages } from '../../../i18n';
import { LoginForm } from '../LoginForm';
import { safeNext } from '../rules';

/** The page of those who have not logged in. */
export function LoginPage() {
  const { t, i18n } = useTranslation('login');
  const client = useQueryClient();
  const router = useRouter();
  const { next } = useSearch({ from: '/login' });
  useEffect(() => {
    document.title = `${t('title')} · ${boot.siteName}`;
  }, [t]);
  return (
    <Center component="main" mih="100vh" p="md">
      <Stack w="100%" maw={380}>
        <Paper withBorder p="xl" bg="var(--app-surface)">
          <Title order={1} mb="md">
            {boot.siteName}
          </Title>
          <LoginForm
            onLogin={(login) => {
              client.clear();
              client.setQueryData(keys.login, login);
              router.history.push(`${router.basepath.replace(/\/$/, '')}${safeNext(next)}`);
            }}
          />
        </Paper>
        <Group justify="center" gap="md">
          {Object.entries(languages).map(([language, name]) => (
            <Anchor
              key={language}
              component="button"
              type="button"
              lang={language}
              size="sm"
              underline={i18n.language === language ? 'always' : 'hover'}
              aria-pressed={i18n.language === language}
              onClick={() => void changeLanguage(language as Language)}
            >
              {name}
            </Anchor>
          ))}
        </Group>
      </Stack>
    </Center>
  );
}
export default LoginPage;
