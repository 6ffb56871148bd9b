import { Anchor, Button, SegmentedControl, SimpleGrid, Stack, Text } from '@mantine/core';
import { Link, useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { parseObject, slotsOf } from '../../../api/filters';
import { useRole } from '../../../api/me';
import { Card } from '../../../components/Card';
import { Chart } from '../../../components/Chart';
import { EmptyState } from '../../../components/EmptyState';
import { Facts } from '../../../components/Facts';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { Slots } from '../../../components/Slots';
import { StatusBadge } from '../../../components/StatusBadge';
import { formatMeasure } from '../../../i18n/format';
import { DeviceOperations } from '../parts/DeviceOperations';
import { DrainAgent } from '../parts/DrainAgent';
import { MoveAgent } from '../parts/MoveAgent';
import { TopologyDrawing } from '../parts/TopologyDrawing';
import { WatcherCard } from '../parts/WatcherCard';
import { type AgentDetails, type Span, useAgent, useAgentHistory } from '../queries';
import { chartsOf, devicesOf, holdersOf, unitOf, unitsOf, usedPart } from '../rules';
import classes from './AgentPage.module.css';

/** Each chart costs time to draw, so that the others are drawn when somebody asks for them. */
const firstCharts = 12;

function Metrics({ id, units }: { id: string; units: Record<string, string> }) {
  const { t, i18n } = useTranslation('fleet');
  const [span, setSpan] = useState<Span>('hour');
  const [showsAll, setShowsAll] = useState(false);
  const query = useAgentHistory(id, span);
  return (
    <Card title={t('metrics.title')}>
      <SegmentedControl
        aria-label={t('metrics.span')}
        value={span}
        onChange={(value) => setSpan(value as Span)}
        data={[
          { value: 'hour', label: t('metrics.hour') },
          { value: 'day', label: t('metrics.day') },
        ]}
        mb="sm"
      />
      <Query query={query}>
        {(history) => {
          const all = chartsOf(history.metrics);
          const charts = showsAll ? all : all.slice(0, firstCharts);
          if (charts.length === 0) return <Text c="dimmed">{t('metrics.none')}</Text>;
          const length = charts[0]?.series[0]?.values.length ?? 0;
          const times = Array.from({ length }, (_, place) => history.end_s - (length - place) * history.step_s);
          return (
            <Stack>
              <SimpleGrid cols={{ base: 1, md: 2 }}>
                {charts.map((chart) => (
                  <figure key={`${chart.name} ${chart.series.length}`} className={classes.figure}>
                    <figcaption>{chart.name}</figcaption>
                    <Chart
                      times={times}
                      series={chart.series}
                      capacity={null}
                      format={(value) => formatMeasure(value, unitOf(chart.name, units), i18n.language)}
                      label={chart.name}
                    />
                  </figure>
                ))}
              </SimpleGrid>
              {all.length > charts.length && (
                <Button variant="default" w="fit-content" onClick={() => setShowsAll(true)}>
                  {t('metrics.more', { count: all.length - charts.length })}
                </Button>
              )}
            </Stack>
          );
        }}
      </Query>
    </Card>
  );
}

function Agent({ agent }: { agent: NonNullable<AgentDetails> }) {
  const { t } = useTranslation('fleet');
  const mayOperate = useRole() === 'superadmin';
  const devices = devicesOf(agent.devices);
  const accelerators = devices.filter((device) => device.name !== 'cpu' && device.name !== 'mem');
  const holders = holdersOf(agent.compute_containers ?? []);
  const enforcement = Object.entries(parseObject(agent.enforcement));
  return (
    <Stack>
      <Card title={t('agent.facts')}>
        <Facts
          rows={[
            [t('column.group'), agent.scaling_group],
            [t('column.place'), (agent.location ?? []).join(' / ')],
            [t('agent.since'), <RelativeTime key="since" at={agent.status_changed} />],
            [t('agent.available'), <Slots key="available" amounts={slotsOf(agent.available_slots)} />],
            [t('agent.occupied'), <Slots key="occupied" amounts={slotsOf(agent.occupied_slots)} />],
            [t('agent.architecture'), agent.architecture],
            [t('agent.runtime'), [agent.runtime, agent.tier].filter(Boolean).join(', ')],
            [t('agent.version'), agent.version],
            [t('agent.address'), agent.addr],
          ]}
        />
      </Card>
      {accelerators.length > 0 && (
        <Card title={t('topology.title')}>
          <TopologyDrawing devices={devices} />
          <SimpleTable
            label={t('topology.table')}
            rows={accelerators}
            idOf={(device) => `${device.name} ${device.id}`}
            minWidth={720}
            columns={[
              { label: t('device.id'), cell: (device) => device.id },
              { label: t('device.model'), cell: (device) => device.model },
              { label: t('device.node'), cell: (device) => device.numa ?? '–' },
              {
                label: t('device.state'),
                cell: (device) =>
                  device.health === 'healthy' ? (
                    <StatusBadge
                      tone={usedPart(device) > 0 ? 'busy' : 'good'}
                      label={usedPart(device) > 0 ? `${Math.round(usedPart(device) * 100)} %` : t('state.free')}
                    />
                  ) : (
                    <StatusBadge tone="bad" label={device.reason || t('state.failed')} />
                  ),
              },
              {
                label: t('device.links'),
                cell: (device) =>
                  device.links
                    .filter((link) => link.kind === 'direct')
                    .map((link) => link.peer)
                    .join(', ') || '–',
              },
              {
                label: t('device.holders'),
                cell: (device) => {
                  const held = holders.filter((holder) => holder.devices.includes(device.id));
                  if (held.length === 0) return '–';
                  return held.map((holder, place) => (
                    <span key={holder.id}>
                      {place > 0 && ', '}
                      <Anchor component={Link} to="/sessions/$id" params={{ id: holder.session } as never}>
                        {holder.session.slice(0, 8)}
                      </Anchor>
                    </span>
                  ));
                },
              },
            ]}
          />
        </Card>
      )}
      {mayOperate && agent.status === 'ALIVE' && <DeviceOperations agent={agent} />}
      {enforcement.length > 0 && (
        <Card title={t('agent.enforcement')}>
          <Facts rows={enforcement.map(([name, level]) => [name, String(level)] as const)} />
        </Card>
      )}
      <Metrics id={agent.id ?? ''} units={unitsOf(agent.live_stat as string | null)} />
      {mayOperate && <WatcherCard id={agent.id ?? ''} />}
    </Stack>
  );
}

/** One agent: its devices drawn by NUMA node and links, who holds each, and what it used lately. */
export function AgentPage() {
  const { t } = useTranslation('fleet');
  const { id = '' } = useParams({ strict: false }) as { id?: string };
  const query = useAgent(id);
  const agent = query.data;
  return (
    <Page
      title={id}
      badge={
        agent && (
          <StatusBadge
            tone={agent.status === 'ALIVE' ? (agent.schedulable ? 'good' : 'warn') : 'bad'}
            label={agent.status === 'ALIVE' && !agent.schedulable ? t('drained') : (agent.status ?? '')}
          />
        )
      }
      actions={
        <>
          <Anchor component={Link} to="/fleet">
            {t('title')}
          </Anchor>
          {agent && <MoveAgent agent={agent} />}
          {agent && <DrainAgent agent={agent} />}
        </>
      }
    >
      <Query query={query}>
        {(found) =>
          found === null ? (
            <EmptyState title={t('agent.unknown')}>{t('agent.unknownHint')}</EmptyState>
          ) : (
            <Agent agent={found} />
          )
        }
      </Query>
    </Page>
  );
}
export default AgentPage;
