import { Center, Paper, Stack, Title } from '@mantine/core';
import { type ReactNode, useEffect } from 'react';
import { useTranslation } from 'react-i18next';
import { boot } from '../../../api/boot';
import { AnchorLink } from '../../../components/AnchorLink';

/** The frame of a page of those who have no login yet, with the way back to it. */
export function Frame({ title, children }: { title: string; children: ReactNode }) {
  const { t } = useTranslation('signUp');
  useEffect(() => {
    document.title = `${title} · ${boot.siteName}`;
  }, [title]);
  return (
    <Center component="main" mih="100vh" p="md">
      <Paper withBorder p="xl" bg="var(--app-surface)" w="100%" maw={420}>
        <Stack>
          <Title order={1}>{title}</Title>
          {children}
          <AnchorLink to="/login">{t('back')}</AnchorLink>
        </Stack>
      </Paper>
    </Center>
  );
}
