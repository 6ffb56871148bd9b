import { Badge, Code, Group, Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Facts } from '../../../components/Facts';
import { Notice } from '../../../components/Notice';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { formatMoment } from '../../../i18n/format';
import type { SessionDetails } from '../queries';
import {
  decisionOf,
  detailsOf,
  type Report,
  type ReportedKernel,
  type ReportedLine,
  type ReportedStep,
} from '../report';
import { useReport } from '../work';
import { SessionStatus } from './SessionStatus';

const breaks = { overflowWrap: 'anywhere' } as const;

/** What the scheduler decided of a session, and what would help. */
function Decision({ decision }: { decision: Report['decision'] }) {
  const { t } = useTranslation('sessionWork');
  const shown = decisionOf(decision);
  if (shown.message === '') return null;
  return (
    <Card title={t('report.decision')}>
      <Stack gap="xs">
        <Text lang="en">{shown.message}</Text>
        <Facts
          rows={[
            [t('report.position'), shown.position],
            [t('report.agents'), shown.agents],
            [t('report.held'), shown.holders.length > 0 ? shown.holders.join(', ') : null],
            [t('report.limits'), shown.limits.length > 0 ? shown.limits.join(', ') : null],
          ]}
        />
        {shown.excluded.length > 0 && (
          <SimpleTable
            label={t('report.excluded')}
            rows={shown.excluded}
            idOf={({ reason }) => reason}
            columns={[
              { label: t('report.excluded'), cell: ({ reason }) => reason },
              { label: t('report.count'), cell: ({ count }) => count },
              { label: t('report.names'), cell: ({ agents }) => agents.join(', ') || '–' },
            ]}
          />
        )}
      </Stack>
    </Card>
  );
}

/** All that the installation knows about a session, for operators: its life, decisions, errors, and logs of daemons. */
export function ReportTab({ session }: { session: SessionDetails }) {
  const { t, i18n } = useTranslation('sessionWork');
  const query = useReport(session.id ?? '');
  const at = (moment: string | number) => (
    <Text size="sm" style={{ whiteSpace: 'nowrap' }}>
      {formatMoment(new Date(typeof moment === 'number' ? moment * 1000 : moment), i18n.language)}
    </Text>
  );
  return (
    <Query query={query} rows={4}>
      {(report) => (
        <Stack>
          {report.unreachable.length > 0 && (
            <Notice tone="wait" title={t('report.unreachable')}>
              {report.unreachable.join(', ')}
            </Notice>
          )}
          {report.errors.map((error) => (
            <Notice key={error} tone="bad" title={error} />
          ))}
          <Card title={t('report.title')}>
            <Facts
              rows={[
                [t('report.reason'), report.reason],
                [t('report.owner'), report.owner],
                [t('report.trace'), report.trace_id ? <Code key="trace">{report.trace_id}</Code> : null],
              ]}
            />
          </Card>
          <Decision decision={report.decision} />
          <Card title={t('report.kernels')}>
            <SimpleTable<ReportedKernel>
              label={t('report.kernels')}
              rows={report.kernels}
              idOf={(kernel) => kernel.id}
              minWidth={640}
              columns={[
                { label: t('report.host'), cell: (kernel) => kernel.host },
                {
                  label: t('report.status'),
                  cell: (kernel) => (
                    <Group gap="xs">
                      <SessionStatus status={kernel.status} />
                      {kernel.info}
                    </Group>
                  ),
                },
                { label: t('report.agent'), cell: (kernel) => kernel.agent ?? '–' },
                { label: t('report.attempt'), cell: (kernel) => kernel.attempt },
                { label: t('report.exit'), cell: (kernel) => kernel.exit_code ?? '–' },
                { label: 'ID', cell: (kernel) => <Code>{kernel.id}</Code> },
              ]}
            />
          </Card>
          <Card title={t('report.life')}>
            <SimpleTable<ReportedStep & { place: number }>
              label={t('report.life')}
              rows={report.life.map((step, place) => ({ ...step, place }))}
              idOf={({ place }) => String(place)}
              columns={[
                { label: t('report.at'), cell: (step) => at(step.at) },
                { label: t('report.step'), cell: (step) => <Code>{step.name}</Code> },
                { label: t('report.details'), cell: (step) => <span style={breaks}>{detailsOf(step)}</span> },
              ]}
            />
          </Card>
          <Card title={t('report.logs')}>
            <Text size="sm" c="dimmed" mb="xs">
              {t('report.logsHint')}
            </Text>
            <SimpleTable<ReportedLine & { place: number }>
              label={t('report.logs')}
              rows={report.logs.map((line, place) => ({ ...line, place }))}
              idOf={({ place }) => String(place)}
              minWidth={720}
              columns={[
                { label: t('report.at'), cell: (line) => at(line.at) },
                { label: t('report.daemon'), cell: (line) => line.daemon },
                {
                  label: t('report.level'),
                  cell: (line) => (
                    <Badge variant="default" tt="none">
                      {line.level}
                    </Badge>
                  ),
                },
                { label: t('report.message'), cell: (line) => <span style={breaks}>{line.message}</span> },
              ]}
            />
          </Card>
        </Stack>
      )}
    </Query>
  );
}
export default ReportTab;
