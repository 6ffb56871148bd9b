import '@mantine/core/styles/Pagination.css';
import { Button, Group, Pagination, Stack } from '@mantine/core';
import { IconPlus } from '@tabler/icons-react';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { Slots } from '../../../components/Slots';
import { ClaimCard } from '../parts/ClaimCard';
import { ClaimStatus } from '../parts/ClaimStatus';
import { CreateDialog } from '../parts/CreateDialog';
import { pageSize, useClaims } from '../queries';
import { devicesOf } from '../rules';

/** Device claims: accelerators that stay their owner's between sessions. */
export function ClaimsPage() {
  const { t } = useTranslation('claims');
  const { page = 1, show = '' } = useSearch({ from: '/shell/claims' });
  const navigate = useNavigate();
  const [isMaking, setMaking] = useState(false);
  const go = (next: { page?: number; show?: string }) => {
    const search = { page, show, ...next };
    void navigate({
      to: '/claims',
      search: { ...(search.page > 1 && { page: search.page }), ...(search.show && { show: search.show }) },
    });
  };
  return (
    <Page
      title={t('title')}
      actions={
        <Button leftSection={<IconPlus size={16} aria-hidden />} onClick={() => setMaking(true)}>
          {t('create.title')}
        </Button>
      }
    >
      {isMaking && (
        <CreateDialog
          onMade={(id) => {
            setMaking(false);
            go({ page: 1, show: id });
          }}
          onClose={() => setMaking(false)}
        />
      )}
      <Query query={useClaims(page)}>
        {({ items, total_count: total }) =>
          total === 0 ? (
            <EmptyState title={t('none')}>{t('noneHint')}</EmptyState>
          ) : (
            <Stack>
              <SimpleTable
                label={t('title')}
                rows={items}
                idOf={(claim) => claim.id}
                minWidth={860}
                columns={[
                  {
                    label: t('column.name'),
                    cell: (claim) => (
                      <AnchorLink to="/claims" search={(before) => ({ ...before, show: claim.id })}>
                        {claim.name}
                      </AnchorLink>
                    ),
                  },
                  { label: t('column.status'), cell: (claim) => <ClaimStatus claim={claim} /> },
                  { label: t('column.slots'), cell: (claim) => <Slots amounts={claim.requested_slots} /> },
                  { label: t('column.devices'), cell: (claim) => devicesOf(claim).join(', ') || '–' },
                  {
                    label: t('column.sessions'),
                    cell: (claim) => claim.sessions.map(({ name }) => name).join(', ') || '–',
                  },
                  { label: t('fact.owner'), cell: (claim) => claim.user_email },
                  { label: t('column.created'), cell: (claim) => <RelativeTime at={claim.created_at} /> },
                ]}
              />
              {total > pageSize && (
                <Group justify="center">
                  <Pagination
                    total={Math.ceil(total / pageSize)}
                    value={page}
                    onChange={(next) => go({ page: next })}
                    getItemProps={(number) => ({ 'aria-label': t('page', { number }) })}
                    getControlProps={(control) => ({ 'aria-label': t(`control.${control}`) })}
                  />
                </Group>
              )}
            </Stack>
          )
        }
      </Query>
      {show !== '' && <ClaimCard key={show} id={show} onGone={() => go({ show: '' })} />}
    </Page>
  );
}
export default ClaimsPage;
