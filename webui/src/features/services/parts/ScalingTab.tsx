import { Button, Code, Group, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Facts } from '../../../components/Facts';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { formatDuration, formatNumber } from '../../../i18n/format';
import type { ServiceDetails } from '../queries';
import { isLive } from '../rules';
import { BoundsDialog } from '../scaling/BoundsDialog';
import type { Scaling, ScalingRule } from '../scaling/drafts';
import { useEndScaling, useRemoveRule, useScaling } from '../scaling/queries';
import { RuleDialog } from '../scaling/RuleDialog';

function useMetricText() {
  const { t } = useTranslation('scaling');
  return (source: string, metric: string) =>
    source === 'proxy'
      ? t(`metrics.${metric as 'load'}`, { defaultValue: metric })
      : `${metric} (${t(`sources.${source as 'kernel'}`, { defaultValue: source })})`;
}

function Decision({ scaling }: { scaling: Scaling }) {
  const { t } = useTranslation('scaling');
  const decision = scaling.last_decision;
  if (decision === null) return <Text c="dimmed">{t('decision.none')}</Text>;
  return (
    <Stack gap="xs">
      <Text size="sm">{decision.explanation}</Text>
      <Facts
        rows={[
          [t('decision.at'), <RelativeTime key="at" at={decision.at} />],
          [t('decision.change'), `${decision.before} → ${decision.desired}`],
          ...Object.entries(decision.inputs).map(
            ([name, value]) => [name, <Code key={name}>{String(value)}</Code>] as const,
          ),
        ]}
      />
    </Stack>
  );
}

type Open =
  | { dialog: 'bounds' }
  | { dialog: 'end' }
  | { dialog: 'rule'; rule: ScalingRule | null }
  | { dialog: 'remove'; rule: ScalingRule };

function Dialogs({
  endpoint,
  scaling,
  open,
  onClose,
}: {
  endpoint: string;
  scaling: Scaling;
  open: Open;
  onClose: () => void;
}) {
  const { t } = useTranslation('scaling');
  const end = useEndScaling(endpoint);
  const remove = useRemoveRule(endpoint);
  if (open.dialog === 'bounds') return <BoundsDialog endpoint={endpoint} scaling={scaling} onClose={onClose} />;
  if (open.dialog === 'rule') return <RuleDialog endpoint={endpoint} rule={open.rule} onClose={onClose} />;
  if (open.dialog === 'end')
    return (
      <Confirm
        isOpen
        title={t('end.title')}
        action={t('end.action')}
        isBusy={end.isPending}
        error={end.error}
        onConfirm={() => end.mutate(undefined, { onSuccess: onClose })}
        onClose={onClose}
      >
        <Text>{t('end.detail', { count: scaling.rules.length })}</Text>
      </Confirm>
    );
  return (
    <Confirm
      isOpen
      title={t('rule.removeTitle')}
      action={t('rule.remove')}
      isBusy={remove.isPending}
      error={remove.error}
      onConfirm={() => remove.mutate(open.rule.id, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('rule.removeDetail')}</Text>
    </Confirm>
  );
}

/** How the number of replicas follows the load: bounds, target, rules, and the last decision with its inputs. */
export function ScalingTab({ service }: { service: ServiceDetails }) {
  const { t, i18n } = useTranslation('scaling');
  const query = useScaling(service.endpoint_id, service.status);
  const metricText = useMetricText();
  const [open, setOpen] = useState<Open | null>(null);
  const mayChange = isLive(service.status);
  const number = (value: number) => formatNumber(value, i18n.language);
  const ruleText = (rule: ScalingRule) =>
    t('rule.when', {
      metric: metricText(rule.metric_source, rule.metric_name),
      comparator: t(`comparators.${rule.comparator as 'less-than'}`, { defaultValue: rule.comparator }),
      threshold: rule.threshold,
    });
  return (
    <Query query={query}>
      {(scaling) => (
        <Stack>
          <Card title={t('title')}>
            <Stack gap="sm">
              {scaling.is_enabled ? (
                <Facts
                  rows={[
                    [
                      t('replicas'),
                      t('bounded', {
                        now: scaling.desired_session_count,
                        min: scaling.min_replicas,
                        max: scaling.max_replicas,
                      }),
                    ],
                    [
                      t('field.target'),
                      scaling.target === null
                        ? t('noTarget')
                        : t('targeted', {
                            value: number(scaling.target.target),
                            metric: metricText(scaling.target.metric_source, scaling.target.metric),
                          }),
                    ],
                    [
                      t('field.idle'),
                      scaling.min_replicas === 0 ? formatDuration(scaling.idle_s ?? 0, i18n.language) : null,
                    ],
                    [t('field.downDelay'), formatDuration(scaling.down_delay_s ?? 0, i18n.language)],
                  ]}
                />
              ) : (
                <Text c="dimmed">{t('off', { count: scaling.desired_session_count })}</Text>
              )}
              {mayChange && (
                <Group gap="xs">
                  <Button size="xs" variant="default" onClick={() => setOpen({ dialog: 'bounds' })}>
                    {t(scaling.is_enabled ? 'bounds.change' : 'bounds.begin')}
                  </Button>
                  {scaling.is_enabled && (
                    <Button size="xs" variant="default" onClick={() => setOpen({ dialog: 'end' })}>
                      {t('end.open')}
                    </Button>
                  )}
                </Group>
              )}
            </Stack>
          </Card>
          <Card title={t('rule.title')}>
            <Stack gap="sm">
              <Text size="sm" c="dimmed">
                {t('rule.about')}
              </Text>
              {scaling.rules.length > 0 && (
                <SimpleTable
                  label={t('rule.title')}
                  rows={scaling.rules}
                  idOf={({ id }) => id}
                  minWidth={640}
                  columns={[
                    { label: t('rule.condition'), cell: ruleText },
                    {
                      label: t('rule.step'),
                      cell: (rule) => (rule.step_size > 0 ? `+${rule.step_size}` : rule.step_size),
                    },
                    { label: t('rule.cooldown'), cell: (rule) => formatDuration(rule.cooldown_seconds, i18n.language) },
                    {
                      label: t('rule.bounds'),
                      cell: (rule) =>
                        rule.min_replicas === null && rule.max_replicas === null
                          ? '–'
                          : `${rule.min_replicas ?? 0} – ${rule.max_replicas ?? '∞'}`,
                    },
                    { label: t('rule.triggered'), cell: (rule) => <RelativeTime at={rule.last_triggered_at} /> },
                    ...(mayChange
                      ? [
                          {
                            label: t('actions'),
                            cell: (rule: ScalingRule) => (
                              <Group gap={4} wrap="nowrap">
                                <Button
                                  size="compact-xs"
                                  variant="default"
                                  aria-label={t('rule.changeOf', { rule: ruleText(rule) })}
                                  onClick={() => setOpen({ dialog: 'rule', rule })}
                                >
                                  {t('change')}
                                </Button>
                                <Button
                                  size="compact-xs"
                                  variant="default"
                                  aria-label={t('rule.removeOf', { rule: ruleText(rule) })}
                                  onClick={() => setOpen({ dialog: 'remove', rule })}
                                >
                                  {t('rule.remove')}
                                </Button>
                              </Group>
                            ),
                          },
                        ]
                      : []),
                  ]}
                />
              )}
              {mayChange && (
                <Group>
                  <Button size="xs" variant="default" onClick={() => setOpen({ dialog: 'rule', rule: null })}>
                    {t('rule.new')}
                  </Button>
                </Group>
              )}
            </Stack>
          </Card>
          {scaling.is_enabled && (
            <Card title={t('decision.title')}>
              <Decision scaling={scaling} />
            </Card>
          )}
          {open !== null && (
            <Dialogs endpoint={service.endpoint_id} scaling={scaling} open={open} onClose={() => setOpen(null)} />
          )}
        </Stack>
      )}
    </Query>
  );
}
export default ScalingTab;
