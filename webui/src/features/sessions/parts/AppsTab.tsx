import { Anchor, Button, Group, SimpleGrid, Stack, Text } from '@mantine/core';
import { IconExternalLink } from '@tabler/icons-react';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem, Problem } from '../../../api/problems';
import { Card } from '../../../components/Card';
import { EmptyState } from '../../../components/EmptyState';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { StatusBadge } from '../../../components/StatusBadge';
import { type SessionDetails, useApps, useStartApp } from '../queries';
import { appUrl } from '../rules';

/** Starts an app and opens it in a tab of its own, which the click opens so that no blocker stops it. */
function AppCard({
  session,
  name,
  protocol,
  status,
}: {
  session: SessionDetails;
  name: string;
  protocol: string;
  status: string | undefined;
}) {
  const { t } = useTranslation('sessions');
  const start = useStartApp(session.id ?? '');
  const [problem, setProblem] = useState<Problem | null>(null);
  const [blocked, setBlocked] = useState('');
  const hasPages = protocol === 'http';
  const open = async () => {
    setProblem(null);
    setBlocked('');
    const tab = window.open('', '_blank');
    if (tab !== null) tab.opener = null;
    try {
      const started = await start.mutateAsync(name);
      const url =
        started.token && started.wsproxy_addr
          ? appUrl(started.wsproxy_addr, started.token, session.id ?? '', { name, protocol })
          : null;
      if (url === null)
        throw new Problem({ title: t('apps.noProxy'), detail: started.wsproxy_error ?? '', status: 503 });
      if (tab !== null) tab.location.href = url;
      else setBlocked(url);
    } catch (error) {
      tab?.close();
      setProblem(asProblem(error));
    }
  };
  return (
    <Card title={name}>
      <Stack gap="xs">
        <Group gap="xs">
          <StatusBadge tone={status === 'running' ? 'good' : 'idle'} label={status ?? protocol} />
          <Text size="sm" c="dimmed">
            {protocol}
          </Text>
        </Group>
        {hasPages ? (
          <Button
            variant="default"
            leftSection={<IconExternalLink size={16} aria-hidden />}
            loading={start.isPending}
            onClick={() => void open()}
            aria-label={t('apps.openName', { name })}
          >
            {t('apps.open')}
          </Button>
        ) : (
          <Text size="sm">{t('apps.byTunnel', { command: `backend.ai app ${session.name ?? ''} ${name}` })}</Text>
        )}
        {blocked !== '' && (
          <Anchor href={blocked} target="_blank" rel="noopener noreferrer">
            {t('apps.follow')}
          </Anchor>
        )}
        {problem && <ProblemAlert error={problem} />}
      </Stack>
    </Card>
  );
}

/** The services of a session, each opened by one click through the app proxy. */
export function AppsTab({ session }: { session: SessionDetails }) {
  const { t } = useTranslation('sessions');
  const query = useApps(session.id ?? '');
  if (session.status !== 'RUNNING' && session.status !== 'RUNNING_DEGRADED') {
    return <EmptyState title={t('apps.notRunning')} />;
  }
  return (
    <Query query={query}>
      {(apps) =>
        apps.length === 0 ? (
          <EmptyState title={t('apps.none')} />
        ) : (
          <SimpleGrid cols={{ base: 1, xs: 2, md: 3 }}>
            {apps.map((app) => (
              <AppCard key={app.name} session={session} name={app.name} protocol={app.protocol} status={app.status} />
            ))}
          </SimpleGrid>
        )
      }
    </Query>
  );
}
