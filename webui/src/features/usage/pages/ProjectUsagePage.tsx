import { Button, Group, Stack, Text, TextInput } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { saveBlob } from '../../../api/save';
import { slotLabel, useSlotDetails } from '../../../api/slots';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { EmptyState } from '../../../components/EmptyState';
import { Facts } from '../../../components/Facts';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { formatBytes, formatDuration, formatNumber } from '../../../i18n/format';
import {
  type ContainerUsage,
  csvOfContainers,
  daysOfMonth,
  dayText,
  faultOf,
  heldHours,
  monthOf,
  type ProjectUsage,
} from '../projects';
import { useMonthOfProjects, usePeriodOfProject } from '../queries';

const maxShown = 200;

/** Returns how to write how long the slots of a report were held. */
function useHeldText(): (usage: ProjectUsage) => string {
  const { t, i18n } = useTranslation('usage');
  const { data: details } = useSlotDetails();
  return (usage) =>
    heldHours(usage.g_slot_seconds)
      .map(({ slot, hours }) =>
        t(slot === 'mem' ? 'projects.heldBytes' : 'projects.held', {
          slot: slotLabel(slot, details),
          hours: formatNumber(hours, i18n.language),
        }),
      )
      .join(', ') || '–';
}

function MonthReport({ month }: { month: string }) {
  const { t, i18n } = useTranslation('usage');
  const query = useMonthOfProjects(month);
  const heldText = useHeldText();
  const days = daysOfMonth(month);
  const bytes = (value: number | undefined) => formatBytes(value ?? 0, i18n.language);
  return (
    <Query query={query}>
      {(projects) =>
        projects.length === 0 ? (
          <EmptyState title={t('projects.none')} />
        ) : (
          <SimpleTable
            label={t('projects.title')}
            rows={projects}
            idOf={(project) => project.g_id ?? ''}
            minWidth={780}
            columns={[
              {
                label: t('projects.project'),
                cell: (project) => (
                  <AnchorLink to="/usage/projects" search={{ project: project.g_id ?? '', ...days }}>
                    {project.g_name}
                  </AnchorLink>
                ),
              },
              { label: t('projects.domain'), cell: (project) => project.domain_name },
              { label: t('projects.containers'), cell: (project) => formatNumber(project.c_count ?? 0, i18n.language) },
              { label: t('projects.heldTitle'), cell: heldText },
              { label: t('projects.cpu'), cell: (project) => formatDuration(project.g_cpu_used ?? 0, i18n.language) },
              { label: t('projects.read'), cell: (project) => bytes(project.g_io_read) },
              { label: t('projects.written'), cell: (project) => bytes(project.g_io_write) },
            ]}
          />
        )
      }
    </Query>
  );
}

function Containers({ containers }: { containers: readonly ContainerUsage[] }) {
  const { t, i18n } = useTranslation('usage');
  return (
    <Stack gap="sm">
      <SimpleTable
        label={t('projects.containers')}
        rows={containers.slice(0, maxShown)}
        idOf={(one) => one.id}
        minWidth={900}
        columns={[
          { label: t('projects.session'), cell: (one) => one.name },
          { label: t('projects.user'), cell: (one) => one.email },
          {
            label: t('projects.image'),
            cell: (one) => (
              <Text size="sm" miw={140} style={{ overflowWrap: 'anywhere' }}>
                {one.image_name}
              </Text>
            ),
          },
          { label: t('measure.cpu_allocated'), cell: (one) => formatNumber(one.smp, i18n.language) },
          { label: t('measure.mem_allocated'), cell: (one) => formatBytes(one.mem_allocated, i18n.language) },
          { label: t('projects.cpu'), cell: (one) => formatDuration(one.cpu_used, i18n.language) },
          { label: t('projects.from'), cell: (one) => <RelativeTime at={one.started_at} /> },
          { label: t('projects.to'), cell: (one) => <RelativeTime at={one.terminated_at} /> },
        ]}
      />
      {containers.length > maxShown && (
        <Text c="dimmed">{t('projects.more', { count: containers.length - maxShown })}</Text>
      )}
      <Button
        variant="default"
        w="fit-content"
        onClick={() => saveBlob(new Blob([csvOfContainers(containers)], { type: 'text/csv' }), 'containers.csv')}
      >
        {t('export')}
      </Button>
    </Stack>
  );
}

function PeriodReport({ project, from, to }: { project: string; from: string; to: string }) {
  const { t, i18n } = useTranslation('usage');
  const query = usePeriodOfProject(project, from, to);
  const heldText = useHeldText();
  return (
    <Query query={query}>
      {(usage) =>
        usage.g_id === undefined ? (
          <EmptyState title={t('projects.nothing')} />
        ) : (
          <Stack>
            <Card title={usage.g_name ?? ''}>
              <Facts
                rows={[
                  [t('projects.domain'), usage.domain_name],
                  [t('projects.containers'), formatNumber(usage.c_count ?? 0, i18n.language)],
                  [t('projects.heldTitle'), heldText(usage)],
                  [t('projects.cpu'), formatDuration(usage.g_cpu_used ?? 0, i18n.language)],
                  [t('projects.read'), formatBytes(usage.g_io_read ?? 0, i18n.language)],
                  [t('projects.written'), formatBytes(usage.g_io_write ?? 0, i18n.language)],
                ]}
              />
            </Card>
            <Card title={t('projects.containers')}>
              <Containers containers={usage.c_infos ?? []} />
            </Card>
          </Stack>
        )
      }
    </Query>
  );
}

/** Asks for the first and the last day of the report of a project. */
function PeriodForm({ project, from, to }: { project: string; from: string; to: string }) {
  const { t } = useTranslation('usage');
  const navigate = useNavigate();
  const [days, setDays] = useState({ from, to });
  const fault = faultOf(days.from, days.to);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (fault === null) void navigate({ to: '/usage/projects', search: { project, ...days } });
  };
  return (
    <form onSubmit={submit} noValidate>
      <Group align="end" gap="xs">
        {(['from', 'to'] as const).map((name) => (
          <TextInput
            key={name}
            type="date"
            label={t(`projects.${name}Day`)}
            value={days[name]}
            onChange={(event) => setDays({ ...days, [name]: event.currentTarget.value })}
          />
        ))}
        <Button type="submit" variant="default" disabled={fault !== null}>
          {t('projects.show')}
        </Button>
        <AnchorLink to="/usage/projects" search={{ month: monthOf(from.slice(0, 7), new Date()) }}>
          {t('projects.all')}
        </AnchorLink>
      </Group>
      {fault !== null && (
        <Text role="alert" size="sm" mt={4} c="red.9">
          {t(`projects.fault.${fault}`)}
        </Text>
      )}
    </form>
  );
}

/** What the sessions of projects used: of all in a month, and of one between two days. */
export function ProjectUsagePage() {
  const { t } = useTranslation('usage');
  const search = useSearch({ from: '/shell/usage/projects' });
  const navigate = useNavigate();
  const now = new Date();
  const month = monthOf(search.month, now);
  const { from = daysOfMonth(month).from, to = dayText(now), project } = search;
  return (
    <Page title={t('projects.title')} actions={<AnchorLink to="/usage">{t('title')}</AnchorLink>}>
      <Text size="sm" c="dimmed">
        {t('projects.means')}
      </Text>
      {project === undefined ? (
        <>
          <TextInput
            type="month"
            label={t('projects.month')}
            w="fit-content"
            value={month}
            max={dayText(now).slice(0, 7)}
            onChange={(event) =>
              void navigate({ to: '/usage/projects', search: { month: event.currentTarget.value }, replace: true })
            }
          />
          <MonthReport month={month} />
        </>
      ) : (
        <>
          <PeriodForm key={`${project} ${from} ${to}`} project={project} from={from} to={to} />
          {faultOf(from, to) === null && <PeriodReport project={project} from={from} to={to} />}
        </>
      )}
    </Page>
  );
}
export default gated(['admin', 'superadmin', 'monitor'], ProjectUsagePage);
