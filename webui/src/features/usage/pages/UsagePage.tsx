import { Button, SegmentedControl, SimpleGrid, Stack, Text } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { saveBlob } from '../../../api/save';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Chart } from '../../../components/Chart';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { TokenUseTable } from '../../../components/TokenUseTable';
import { formatBytes, formatNumber } from '../../../i18n/format';
import { type Scope, useModelUse, useTimeline } from '../queries';
import { csvOf, isOfBytes, type Measure, type UsageBin, usedMeasures } from '../rules';

function download(bins: readonly UsageBin[]): void {
  saveBlob(new Blob([csvOf(bins)], { type: 'text/csv' }), 'usage.csv');
}

function Timeline({ bins }: { bins: readonly UsageBin[] }) {
  const { t, i18n } = useTranslation('usage');
  const used = usedMeasures(bins);
  if (used.length === 0) return <EmptyState title={t('none')}>{t('noneHint')}</EmptyState>;
  const times = bins.map((bin) => bin.date);
  const format = (name: Measure) => (value: number) =>
    (isOfBytes(name) ? formatBytes : formatNumber)(value, i18n.language);
  return (
    <Stack>
      <SimpleGrid cols={{ base: 1, md: 2 }}>
        {used.map(({ name, mean, most }) => {
          const text = t('average', { mean: format(name)(mean), most: format(name)(most) });
          const title = t(`measure.${name}`);
          return (
            <Card key={name} title={title}>
              <Text size="sm">{text}</Text>
              <Chart
                label={`${title}: ${text}`}
                times={times}
                series={[{ label: title, values: bins.map((bin) => bin[name].value) }]}
                capacity={null}
                format={format(name)}
              />
            </Card>
          );
        })}
      </SimpleGrid>
      <Button variant="default" w="fit-content" onClick={() => download(bins)}>
        {t('export')}
      </Button>
    </Stack>
  );
}

/** What the sessions and model services of a person used in the last 30 days; administrators see those of others. */
export function UsagePage() {
  const { t } = useTranslation('usage');
  const { of: scope = 'own' } = useSearch({ strict: false }) as { of?: Scope };
  const navigate = useNavigate();
  const isAdministrator = useRole() !== 'user';
  const timeline = useTimeline(isAdministrator ? scope : 'own');
  const models = useModelUse();
  return (
    <Page
      title={t('title')}
      actions={isAdministrator && <AnchorLink to="/usage/projects">{t('projects.title')}</AnchorLink>}
    >
      <Stack>
        {isAdministrator && (
          <SegmentedControl
            w="fit-content"
            aria-label={t('scope.label')}
            value={scope}
            onChange={(value) => void navigate({ to: '/usage', search: value === 'all' ? { of: 'all' } : {} })}
            data={[
              { value: 'own', label: t('scope.own') },
              { value: 'all', label: t('scope.all') },
            ]}
          />
        )}
        <Card title={t('sessions')}>
          <Query query={timeline}>{(bins) => <Timeline bins={bins} />}</Query>
        </Card>
        <Card title={t('models')}>
          <Query query={models} rows={2}>
            {(use) =>
              use.groups.length === 0 ? (
                <Text c="dimmed">{t('noModels')}</Text>
              ) : (
                <TokenUseTable use={use} label={t('models')} nameOf={(group) => group.name ?? group.key ?? '–'} />
              )
            }
          </Query>
        </Card>
      </Stack>
    </Page>
  );
}
export default UsagePage;
