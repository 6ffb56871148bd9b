import type { ReactNode } from 'react';
import { useTranslation } from 'react-i18next';
import { type Role, useRole } from '../api/me';
import { EmptyState } from './EmptyState';
import { Page } from './Page';

/** Shows a page to some roles, and to others why it is not theirs. */
export function RoleGate({ roles, children }: { roles: readonly Role[]; children: ReactNode }) {
  const { t } = useTranslation('components');
  const role = useRole();
  if (roles.includes(role)) return children;
  return (
    <Page title={t('forbidden.title')}>
      <EmptyState title="403">{t('forbidden.detail', { role })}</EmptyState>
    </Page>
  );
}
