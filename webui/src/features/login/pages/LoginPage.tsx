import { Anchor, Button, Center, Divider, Group, Paper, Stack, Title } from '@mantine/core';
import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useRouter, useSearch } from '@tanstack/react-router';
import { useEffect } from 'react';
import { useTranslation } from 'react-i18next';
import { boot } from '../../../api/boot';
import { keys } from '../../../api/keys';
import { signOnAddress, signOnServices } from '../../../api/login';
import { AnchorLink } from '../../../components/AnchorLink';
import { changeLanguage, type Language, languages } from '../../../i18n';
import { LoginForm } from '../LoginForm';
import { safeNext } from '../rules';

/** Leads to the services at which the site lets people sign in; nothing where there are none. */
function SignOn({ path }: { path: string }) {
  const { t } = useTranslation('login');
  const { data: services = [] } = useQuery({ queryKey: ['sign-on'], queryFn: signOnServices, staleTime: 60_000 });
  if (services.length === 0) return null;
  return (
    <Stack gap="sm" mt="md" component="nav" aria-label={t('signOn.title')}>
      <Divider label={t('signOn.or')} styles={{ label: { color: 'inherit' } }} />
      {services.map((service) => (
        <Button key={service} component="a" variant="default" href={signOnAddress(service, path)}>
          {t('signOn.with', { service })}
        </Button>
      ))}
    </Stack>
  );
}

/** The page of those who have not logged in. */
export function LoginPage() {
  const { t, i18n } = useTranslation('login');
  const client = useQueryClient();
  const router = useRouter();
  const { next } = useSearch({ from: '/login' });
  const path = `${router.basepath.replace(/\/$/, '')}${safeNext(next)}`;
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
              router.history.push(path);
            }}
          />
          <SignOn path={path} />
          {boot.features.signup && (
            <Center mt="md">
              <AnchorLink to="/sign-up">{t('signUp')}</AnchorLink>
            </Center>
          )}
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
