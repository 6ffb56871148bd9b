import { Button, Code, Group, Stack, Text } from '@mantine/core';
import { useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { EmptyState } from '../../../components/EmptyState';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { SystemTabs } from '../parts/SystemTabs';
import { errorPageSize, useClearError, useErrors } from '../queries';

/** The errors that clients have reported, newest first. */
export function ErrorsPage() {
  const { t } = useTranslation('operations');
  const { page = 1 } = useSearch({ from: '/shell/system/errors' });
  const query = useErrors(page);
  const clear = useClearError();
  const [open, setOpen] = useState<string | null>(null);
  return (
    <Page title={t('errors.title')}>
      <SystemTabs here="errors" />
      {clear.isError && <ProblemAlert error={clear.error} />}
      <Query query={query}>
        {({ logs, count }) => {
          if (logs.length === 0) return <EmptyState title={t('errors.none')}>{t('errors.noneHint')}</EmptyState>;
          return (
            <>
              <SimpleTable
                label={t('errors.title')}
                rows={logs}
                idOf={(item) => item.log_id}
                minWidth={760}
                columns={[
                  {
                    label: t('column.at'),
                    cell: (item) => <RelativeTime at={new Date(item.created_at * 1000).toISOString()} />,
                  },
                  {
                    label: t('column.severity'),
                    cell: (item) => (
                      <StatusBadge tone={item.severity === 'warning' ? 'warn' : 'bad'} label={item.severity} />
                    ),
                  },
                  { label: t('column.source'), cell: (item) => item.source },
                  {
                    label: t('column.message'),
                    cell: (item) => (
                      <Stack gap={4}>
                        <Text size="sm" style={{ overflowWrap: 'anywhere' }}>
                          {item.message}
                        </Text>
                        {open === item.log_id && (
                          <Code block>
                            {[item.request_url, item.request_status, item.traceback].filter(Boolean).join('\n') ||
                              t('errors.noDetails')}
                          </Code>
                        )}
                      </Stack>
                    ),
                  },
                  {
                    label: t('column.action'),
                    cell: (item) => (
                      <Group gap={4} wrap="nowrap">
                        <Button
                          size="compact-xs"
                          variant="default"
                          aria-expanded={open === item.log_id}
                          aria-label={t('errors.detailsOf', { message: item.message.slice(0, 60) })}
                          onClick={() => setOpen(open === item.log_id ? null : item.log_id)}
                        >
                          {t('errors.details')}
                        </Button>
                        <Button
                          size="compact-xs"
                          variant="default"
                          aria-label={t('errors.clearOf', { message: item.message.slice(0, 60) })}
                          loading={clear.isPending && clear.variables === item.log_id}
                          onClick={() => clear.mutate(item.log_id)}
                        >
                          {t('errors.clear')}
                        </Button>
                      </Group>
                    ),
                  },
                ]}
              />
              <Group>
                {page > 1 && (
                  <AnchorLink to="/system/errors" search={page > 2 ? { page: page - 1 } : {}}>
                    {t('newer')}
                  </AnchorLink>
                )}
                {page * errorPageSize < count && (
                  <AnchorLink to="/system/errors" search={{ page: page + 1 }}>
                    {t('older')}
                  </AnchorLink>
                )}
              </Group>
            </>
          );
        }}
      </Query>
    </Page>
  );
}
export default gated(['admin', 'superadmin', 'monitor'], ErrorsPage);
