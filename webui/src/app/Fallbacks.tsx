import { Button } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { EmptyState } from '../components/EmptyState';
import { Page } from '../components/Page';
import { ProblemAlert } from '../components/ProblemAlert';

export function NotFound() {
  const { t } = useTranslation('app');
  return (
    <Page title={t('notFound.title')}>
      <EmptyState
        title={t('notFound.detail')}
        action={
          <Button component={Link} to="/">
            {t('notFound.home')}
          </Button>
        }
      />
    </Page>
  );
}

/** What is left of a page that has failed; the shell around it goes on. */
export function Failed({ error, reset }: { error: unknown; reset: () => void }) {
  const { t } = useTranslation('app');
  return (
    <Page title={t('failed.title')}>
      <ProblemAlert error={error} onRetry={reset} />
    </Page>
  );
}
