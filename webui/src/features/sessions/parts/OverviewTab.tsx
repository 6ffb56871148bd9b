import { Code, Group, SimpleGrid, Stack } from '@mantine/core';
import { lazy, Suspense } from 'react';
import { useTranslation } from 'react-i18next';
import { slotsOf } from '../../../api/filters';
import { Card } from '../../../components/Card';
import { Copy } from '../../../components/Copy';
import { Facts } from '../../../components/Facts';
import { Notice } from '../../../components/Notice';
import { RelativeTime } from '../../../components/RelativeTime';
import { Slots } from '../../../components/Slots';
import { loadMessages } from '../../../i18n';
import type { SessionDetails } from '../queries';
import { errorOf, isLive, waitOf } from '../rules';
import { SessionStatus } from './SessionStatus';
import { StageTimeline } from './StageTimeline';
import { WaitReason } from './WaitReason';

const DependencyTree = lazy(
  async () => (await Promise.all([import('./DependencyTree'), loadMessages('sessionWork')]))[0],
);
const Reproduce = lazy(async () => (await Promise.all([import('./Reproduce'), loadMessages('sessionWork')]))[0]);

/** What the session is, its stages with their causes, and its members. */
export function OverviewTab({ session }: { session: SessionDetails }) {
  const { t } = useTranslation('sessions');
  const wait = waitOf(session);
  const error = errorOf(session.status_data);
  const dependencies = (session.dependencies ?? []).filter((item) => item !== null);
  const containers = (session.containers ?? []).filter((item) => item !== null);
  return (
    <Stack>
      {wait && (
        <Notice tone={wait.class === 'never' ? 'bad' : 'wait'} title={t('waits')}>
          <WaitReason wait={wait} isLong />
        </Notice>
      )}
      {error !== '' && (
        <Notice tone="bad" title={t('error')}>
          {error}
        </Notice>
      )}
      <SimpleGrid cols={{ base: 1, md: 2 }}>
        <Card title={t('timeline')}>
          <StageTimeline history={session.status_history} isLive={isLive(session.status)} />
          <Facts
            rows={[
              [t('fact.cause'), session.status_info && !wait ? <Code key="cause">{session.status_info}</Code> : null],
              [t('fact.result'), session.result === 'UNDEFINED' ? null : session.result],
              [t('fact.startsAt'), session.starts_at ? <RelativeTime key="starts" at={session.starts_at} /> : null],
            ]}
          />
        </Card>
        <Card title={t('facts')}>
          <Facts
            rows={[
              [
                'ID',
                <Group key="id" gap={4} wrap="nowrap">
                  <Code>{session.id}</Code>
                  <Copy value={session.id ?? ''} label={t('copyId')} />
                </Group>,
              ],
              [t('fact.type'), session.type],
              [t('fact.image'), `${session.image ?? ''} (${session.architecture ?? ''})`],
              [t('fact.requested'), <Slots key="requested" amounts={slotsOf(session.requested_slots)} />],
              [t('fact.owner'), session.user_email],
              [t('fact.project'), `${session.domain_name ?? ''} / ${session.group_name ?? ''}`],
              [t('fact.resourceGroup'), session.scaling_group],
              [t('fact.agents'), (session.agents ?? []).join(', ')],
              [
                t('fact.cluster'),
                (session.cluster_size ?? 1) > 1 ? `${session.cluster_size} · ${session.cluster_mode}` : null,
              ],
              [t('fact.array'), session.array_name ? `${session.array_name} [${session.array_index}]` : null],
              [t('fact.mounts'), (session.mounts ?? []).join(', ')],
              [t('fact.variants'), (session.variant_requirements ?? []).join(', ')],
              [t('fact.deviceRequests'), (session.device_requests ?? []).join(' / ')],
              [t('fact.claim'), session.claim],
              [
                t('fact.command'),
                session.startup_command ? (
                  <Code block key="command">
                    {session.startup_command}
                  </Code>
                ) : null,
              ],
            ]}
          />
        </Card>
      </SimpleGrid>
      <Suspense>
        {dependencies.length > 0 && <DependencyTree id={session.id ?? ''} />}
        <Reproduce session={session} />
      </Suspense>
      {containers.length > 1 && (
        <Card title={t('members')}>
          <Facts
            rows={containers.map((item) => [
              item.cluster_hostname ?? '',
              <Group key={item.id} gap="xs">
                <SessionStatus status={item.status} />
                {item.status_info}
                {item.exit_code !== null && item.exit_code !== undefined && t('exitCode', { code: item.exit_code })}
                {item.agent}
              </Group>,
            ])}
          />
        </Card>
      )}
    </Stack>
  );
}
