import { Text } from '@mantine/core';
import { useParams } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { DotfilesCard } from '../../../components/dotfiles/DotfilesCard';
import { EmptyState } from '../../../components/EmptyState';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { StatusBadge } from '../../../components/StatusBadge';
import { Crumbs } from '../../../components/TabbedPage';
import { useDomains } from '../queries';

function Content() {
  const { t } = useTranslation('people');
  const { name } = useParams({ from: '/shell/domains/$name' });
  const role = useRole();
  return (
    <>
      <Crumbs
        list={
          <AnchorLink to="/people" search={{ tab: 'domains' }}>
            {t('tab.domains')}
          </AnchorLink>
        }
        here={name}
      />
      <Query query={useDomains()}>
        {(domains) => {
          const domain = domains.find((one) => one.name === name);
          if (domain === undefined)
            return (
              <Page title={t('domain.one')}>
                <EmptyState title={t('domain.notThere')}>{t('domain.notThereHint')}</EmptyState>
              </Page>
            );
          return (
            <Page
              title={name}
              badge={
                <StatusBadge
                  tone={domain.is_active ? 'good' : 'idle'}
                  label={domain.is_active ? t('active') : t('inactive')}
                />
              }
            >
              {domain.description && <Text>{domain.description}</Text>}
              <DotfilesCard
                owner={{ scope: 'domain', domain: name }}
                mayChange={role === 'superadmin' || role === 'admin'}
              />
            </Page>
          );
        }}
      </Query>
    </>
  );
}

/** One domain: the dotfiles of its sessions. */
export const DomainPage = gated(['admin', 'superadmin', 'monitor'], Content);
export default DomainPage;
