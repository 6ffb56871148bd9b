import { SegmentedControl, SimpleGrid, Stack, Table, Text } from '@mantine/core';
import { lazy, Suspense, useEffect, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { onForget } from '../../../api/personal';
import { Card } from '../../../components/Card';
import { Chart } from '../../../components/Chart';
import { EmptyState } from '../../../components/EmptyState';
import { Query } from '../../../components/Query';
import { loadMessages } from '../../../i18n';
import { formatMeasure } from '../../../i18n/format';
import { type SessionDetails, useStats } from '../queries';
import { isLive, isRunning, type Measure, measuresOf } from '../rules';

const Processes = lazy(async () => (await Promise.all([import('./Processes'), loadMessages('sessionWork')]))[0]);

const hourOfSamples = 720;

interface Sample {
  time: number;
  /** Host name of a kernel to its measures. */
  kernels: Record<string, Measure[]>;
}

// Kept while the tab of the browser lives, so that a look at another page loses nothing.
const histories = new Map<string, Sample[]>();
onForget(() => histories.clear());

function formatter(unit: string, language: string): (value: number) => string {
  return (value) => formatMeasure(value, unit, language);
}

/** Values of processors, memory and devices, drawn as they come, or as a table. */
function Measures({ session }: { session: SessionDetails }) {
  const { t, i18n } = useTranslation('sessions');
  const id = session.id ?? '';
  const query = useStats(id, isLive(session.status));
  const [view, setView] = useState('charts');
  const [samples, setSamples] = useState<Sample[]>(() => histories.get(id) ?? []);
  const at = query.dataUpdatedAt;
  const data = query.data;
  useEffect(() => {
    if (at === 0 || !data) return;
    const kernels = Object.fromEntries(
      (data.containers ?? [])
        .filter((item) => item !== null)
        .map((item) => [item.cluster_hostname ?? '', measuresOf(item.live_stat)]),
    );
    setSamples((before) => {
      if (before.at(-1)?.time === at / 1000) return before;
      const after = [...before, { time: at / 1000, kernels }].slice(-hourOfSamples);
      histories.set(id, after);
      return after;
    });
  }, [at, data, id]);
  const latest = samples.at(-1);
  const names = [
    ...new Set(Object.values(latest?.kernels ?? {}).flatMap((measures) => measures.map((measure) => measure.name))),
  ];
  const hosts = Object.keys(latest?.kernels ?? {});
  const measure = (sample: Sample | undefined, host: string, name: string) =>
    sample?.kernels[host]?.find((item) => item.name === name);
  const times = samples.map((sample) => sample.time);
  return (
    <Query query={query}>
      {() =>
        names.length === 0 ? (
          <EmptyState title={t('metrics.none')} />
        ) : (
          <Stack>
            <SegmentedControl
              w="fit-content"
              aria-label={t('metrics.view')}
              value={view}
              onChange={setView}
              data={[
                { value: 'charts', label: t('metrics.charts') },
                { value: 'table', label: t('metrics.table') },
              ]}
            />
            {view === 'table' ? (
              <Table>
                <Table.Thead>
                  <Table.Tr>
                    <Table.Th>{t('metrics.name')}</Table.Th>
                    {hosts.map((host) => (
                      <Table.Th key={host}>{host}</Table.Th>
                    ))}
                  </Table.Tr>
                </Table.Thead>
                <Table.Tbody>
                  {names.map((name) => (
                    <Table.Tr key={name}>
                      <Table.Td>{name}</Table.Td>
                      {hosts.map((host) => {
                        const item = measure(latest, host, name);
                        const format = formatter(item?.unit ?? '', i18n.language);
                        return (
                          <Table.Td key={host}>
                            {item
                              ? `${format(item.current)}${item.capacity === null ? '' : ` / ${format(item.capacity)}`}`
                              : '–'}
                          </Table.Td>
                        );
                      })}
                    </Table.Tr>
                  ))}
                </Table.Tbody>
              </Table>
            ) : (
              <SimpleGrid cols={{ base: 1, md: 2 }}>
                {names.map((name) => {
                  const first = hosts.map((host) => measure(latest, host, name)).find((item) => item !== undefined);
                  const format = formatter(first?.unit ?? '', i18n.language);
                  const text = first
                    ? `${format(first.current)}${first.capacity === null ? '' : ` / ${format(first.capacity)}`}`
                    : '';
                  return (
                    <Card key={name} title={name}>
                      <Text size="sm">{text}</Text>
                      <Chart
                        label={`${name}: ${text}`}
                        times={times}
                        series={hosts.map((host) => ({
                          label: host,
                          values: samples.map((sample) => measure(sample, host, name)?.current ?? null),
                        }))}
                        capacity={first?.capacity ?? null}
                        format={format}
                      />
                    </Card>
                  );
                })}
              </SimpleGrid>
            )}
          </Stack>
        )
      }
    </Query>
  );
}

/** What a session uses: its containers over time, and its processes now. */
export function MetricsTab({ session }: { session: SessionDetails }) {
  return (
    <Stack>
      <Measures session={session} />
      {isRunning(session.status) && (
        <Suspense>
          <Processes id={session.id ?? ''} />
        </Suspense>
      )}
    </Stack>
  );
}
export default MetricsTab;
