import { Anchor, Group, SegmentedControl, Stack, Text } from '@mantine/core';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { useMemo } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { SearchField } from '../../../components/SearchField';
import { SimpleTable } from '../../../components/SimpleTable';
import { Slots } from '../../../components/Slots';
import { StatusBadge } from '../../../components/StatusBadge';
import { FleetMap } from '../parts/FleetMap';
import { useFleet } from '../queries';
import { agentsOf, countDevices, type FleetAgent, type FleetView, groupAgents, healthOf } from '../rules';
import classes from './FleetPage.module.css';

const states = ['free', 'part', 'full', 'failed'] as const;
const maxRows = 200;
const tones = { good: 'good', wait: 'warn', bad: 'bad' } as const;

function texts(amounts: Record<string, number>): Record<string, string> {
  return Object.fromEntries(Object.entries(amounts).map(([slot, amount]) => [slot, String(amount)]));
}

function matches(agent: FleetAgent, text: string): boolean {
  const words = `${agent.id} ${agent.group} ${agent.place} ${agent.hardware} ${agent.status}`.toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => words.includes(word));
}

function FleetTable({ agents }: { agents: readonly FleetAgent[] }) {
  const { t } = useTranslation('fleet');
  return (
    <Stack gap="xs">
      <SimpleTable
        label={t('title')}
        rows={agents.slice(0, maxRows)}
        idOf={(agent) => agent.id}
        minWidth={860}
        columns={[
          {
            label: t('column.agent'),
            cell: (agent) => (
              <Anchor component={Link} to="/fleet/$id" params={{ id: agent.id } as never}>
                {agent.id}
              </Anchor>
            ),
          },
          {
            label: t('column.status'),
            cell: (agent) => (
              <StatusBadge
                tone={tones[healthOf(agent)]}
                label={agent.schedulable || agent.status !== 'ALIVE' ? agent.status : t('drained')}
              />
            ),
          },
          { label: t('column.group'), cell: (agent) => agent.group },
          { label: t('column.place'), cell: (agent) => agent.place || '–' },
          { label: t('column.hardware'), cell: (agent) => agent.hardware || '–' },
          {
            label: t('column.devices'),
            cell: (agent) => {
              const counts = countDevices(agent.devices);
              return states
                .filter((state) => counts[state] > 0)
                .map((state) => `${counts[state]} ${t(`state.${state}`)}`)
                .join(', ');
            },
          },
          { label: t('column.kernels'), cell: (agent) => agent.kernels },
          {
            label: t('column.free'),
            cell: (agent) => (
              <Slots
                amounts={texts(
                  Object.fromEntries(
                    Object.entries(agent.available).map(([slot, amount]) => [
                      slot,
                      amount - (agent.occupied[slot] ?? 0),
                    ]),
                  ),
                )}
              />
            ),
          },
        ]}
      />
      {agents.length > maxRows && (
        <Text size="sm" c="dimmed">
          {t('more', { count: agents.length - maxRows })}
        </Text>
      )}
    </Stack>
  );
}

function Legend() {
  const { t } = useTranslation('fleet');
  return (
    <Group gap="md" className={classes.legend}>
      {states.map((state) => (
        <span key={state} className={classes.entry}>
          <span className={classes.square} data-state={state} aria-hidden />
          {t(`state.${state}`)}
        </span>
      ))}
    </Group>
  );
}

function Fleet({ view }: { view: FleetView }) {
  const { t } = useTranslation('fleet');
  const search = useSearch({ strict: false }) as { view?: string; by?: string; q?: string };
  const navigate = useNavigate();
  const q = search.q ?? '';
  const by = search.by === 'group' ? 'group' : 'place';
  const isTable = search.view === 'table';
  const go = (next: Record<string, string>) => {
    const params = { ...search, ...next };
    const kept = Object.entries(params).filter(
      ([name, value]) => value && !(name === 'view' && value === 'map') && !(name === 'by' && value === 'place'),
    );
    void navigate({ to: '.', search: Object.fromEntries(kept) as never, replace: true });
  };
  const all = useMemo(() => agentsOf(view), [view]);
  const shown = useMemo(() => all.filter((agent) => matches(agent, q)), [all, q]);
  const groups = useMemo(() => groupAgents(shown, by), [shown, by]);
  const bad = all.filter((agent) => healthOf(agent) === 'bad').length;
  return (
    <Stack>
      <Group>
        <SegmentedControl
          aria-label={t('view.label')}
          value={isTable ? 'table' : 'map'}
          onChange={(value) => go({ view: value })}
          data={[
            { value: 'map', label: t('view.map') },
            { value: 'table', label: t('view.table') },
          ]}
        />
        <SegmentedControl
          aria-label={t('by.label')}
          value={by}
          onChange={(value) => go({ by: value })}
          data={[
            { value: 'place', label: t('by.place') },
            { value: 'group', label: t('by.group') },
          ]}
        />
        <SearchField label={t('filter')} clearLabel={t('clear')} value={q} onChange={(text) => go({ q: text })} />
      </Group>
      <Text>
        {t('summary', { count: all.length })} {bad > 0 && t('bad', { count: bad })}
      </Text>
      {all.length === 0 && <EmptyState title={t('none')}>{t('noneHint')}</EmptyState>}
      {all.length > 0 && shown.length === 0 && <EmptyState title={t('nothingMatches')} />}
      {shown.length > 0 && isTable && <FleetTable agents={shown} />}
      {shown.length > 0 && !isTable && (
        <Card title={t('view.map')}>
          <Legend />
          <FleetMap
            groups={groups}
            onOpen={(agent) => void navigate({ to: '/fleet/$id', params: { id: agent.id } as never })}
          />
        </Card>
      )}
    </Stack>
  );
}

/** All agents: a map by place or group, or a table; both filtered by the same text. */
export function FleetPage() {
  const { t } = useTranslation('fleet');
  const query = useFleet();
  return (
    <Page title={t('title')}>
      <Query query={query}>{(view) => <Fleet view={view} />}</Query>
    </Page>
  );
}
export default FleetPage;
