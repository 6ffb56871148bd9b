import { Code, Stack, Switch, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { formatMeasure } from '../../../i18n/format';
import { isUsers, metricNames, type Process } from '../processes';
import { measuresOfObject } from '../rules';
import { useProcesses } from '../work';

const columnWidth = 110;

/** The busiest processes of a session, and what they use now. */
export function Processes({ id }: { id: string }) {
  const { t, i18n } = useTranslation('sessionWork');
  const [isAll, setAll] = useState(false);
  const amount = (process: Process, name: string) => {
    const measure = measuresOfObject(process.metrics).find((item) => item.name === name);
    return measure ? formatMeasure(measure.current, measure.unit, i18n.language) : '–';
  };
  return (
    <Card title={t('processes.title')}>
      <Query query={useProcesses(id)}>
        {(processes) => {
          const shown = isAll ? processes : processes.filter(isUsers);
          const names = metricNames(shown);
          return (
            <Stack gap="sm">
              <Text size="sm" c="dimmed">
                {t('processes.hint')}
              </Text>
              <Switch
                label={t('processes.all')}
                checked={isAll}
                onChange={(event) => setAll(event.currentTarget.checked)}
              />
              <SimpleTable
                label={t('processes.title')}
                rows={shown}
                idOf={(process) => `${process.kernel} ${process.pid}`}
                minWidth={400 + columnWidth * names.length}
                columns={[
                  { label: t('processes.kernel'), cell: (process) => process.kernel },
                  { label: 'PID', cell: (process) => process.pid },
                  ...names.map((name) => ({
                    label: t(`processes.metric.${name}` as 'processes.metric.mem', name),
                    cell: (process: Process) => amount(process, name),
                  })),
                  {
                    label: t('processes.command'),
                    cell: (process) => <Code style={{ overflowWrap: 'anywhere' }}>{process.command}</Code>,
                  },
                ]}
              />
            </Stack>
          );
        }}
      </Query>
    </Card>
  );
}
export default Processes;
