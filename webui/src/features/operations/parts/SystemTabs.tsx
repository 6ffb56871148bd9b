import { Group } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { ButtonLink } from '../../../components/ButtonLink';

const pages = [
  { to: '/system', name: 'installation' },
  { to: '/system/settings', name: 'settings' },
  { to: '/system/configuration', name: 'configuration' },
  { to: '/system/audit', name: 'audit' },
  { to: '/system/errors', name: 'errors' },
  { to: '/system/roles', name: 'roles' },
] as const;

const forSuperadmins: readonly string[] = ['settings', 'configuration', 'audit'];

/** Links between the pages about the installation; those that the role may not see are left out. */
export function SystemTabs({ here }: { here: (typeof pages)[number]['name'] }) {
  const { t } = useTranslation('operations');
  const role = useRole();
  return (
    <Group gap="xs" component="nav" aria-label={t('tabs.label')}>
      {pages
        .filter(({ name }) => role === 'superadmin' || !forSuperadmins.includes(name))
        .map(({ to, name }) => (
          <ButtonLink
            key={name}
            to={to}
            size="xs"
            variant={name === here ? 'light' : 'subtle'}
            {...(name === here ? { 'aria-current': 'page' as const } : {})}
          >
            {t(`tabs.${name}`)}
          </ButtonLink>
        ))}
    </Group>
  );
}
