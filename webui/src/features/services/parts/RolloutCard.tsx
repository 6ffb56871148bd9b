import { Button, Group, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Facts } from '../../../components/Facts';
import { RelativeTime } from '../../../components/RelativeTime';
import { formatDuration, formatNumber } from '../../../i18n/format';
import { type ServiceDetails, usePromote, useServiceWhy } from '../queries';
import { isPromotable, policyOf } from '../rollout';
import { isLive, isRollingOut } from '../rules';
import { PolicyDialog } from './PolicyDialog';

function PromoteDialog({ service, number, onClose }: { service: ServiceDetails; number: number; onClose: () => void }) {
  const { t } = useTranslation('services');
  const promote = usePromote(service.endpoint_id);
  const { kind } = policyOf(service.policy);
  return (
    <Confirm
      isOpen
      title={t('promote.title', { number })}
      action={t('promote.action')}
      isDangerous={false}
      isBusy={promote.isPending}
      error={promote.error}
      onConfirm={() => promote.mutate(undefined, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t(kind === 'canary' ? 'promote.canary' : 'promote.watch')}</Text>
    </Confirm>
  );
}

/** How revisions are rolled out, what guards a new one, and where the present roll-out is. */
export function RolloutCard({ service }: { service: ServiceDetails }) {
  const { t, i18n } = useTranslation('services');
  const [dialog, setDialog] = useState<'policy' | 'promote' | null>(null);
  const why = useServiceWhy(service.endpoint_id, service.status);
  const policy = policyOf(service.policy);
  const number = (value: number) => formatNumber(value, i18n.language);
  const { guard, steps } = policy;
  const target =
    service.revisions.length > 1 ? service.revisions.find(({ status }) => isRollingOut(status)) : undefined;
  const last = service.revisions[0];
  const step = target === undefined ? undefined : steps[target.step];
  const isWatched = policy.kind === 'blue-green' && target?.step === 1;
  const holds = isWatched ? policy.watch_s : policy.kind === 'canary' ? step?.hold_s : undefined;
  const since = target?.step_since ?? null;
  const guardParts = guard && [
    ...(guard.max_error_rate === null ? [] : [t('guard.errors', { percent: number(guard.max_error_rate * 100) })]),
    ...(guard.max_ttft_ratio === null ? [] : [t('guard.firstByte', { ratio: number(guard.max_ttft_ratio) })]),
    ...(guard.min_token_rate_ratio === null ? [] : [t('guard.tokens', { ratio: number(guard.min_token_rate_ratio) })]),
    t('guard.from', { count: guard.min_requests }),
  ];
  const close = () => setDialog(null);
  const canAct = isLive(service.status);
  return (
    <Card title={t('rollout.title')}>
      <Stack gap="sm">
        <Facts
          rows={[
            [t('rollout.kind'), t(`kind.${policy.kind}`)],
            policy.kind === 'canary'
              ? [
                  t('policy.steps'),
                  steps
                    .map(({ weight, hold_s: hold }) =>
                      hold === null
                        ? t('rollout.untilPromoted', { weight: number(weight) })
                        : t('rollout.held', { weight: number(weight), time: formatDuration(hold, i18n.language) }),
                    )
                    .join(' · '),
                ]
              : [
                  t('policy.watch'),
                  policy.kind === 'blue-green' ? formatDuration(policy.watch_s, i18n.language) : null,
                ],
            [t('guard.title'), guardParts === null ? t('guard.none') : guardParts.join(' · ')],
            [
              t('guard.state'),
              guard === null
                ? null
                : target !== undefined
                  ? t('guard.kept', { number: target.number })
                  : last?.reason === 'guard-tripped'
                    ? t('guard.tripped', { number: last.number })
                    : null,
            ],
            [t('rollout.now'), target === undefined ? t('rollout.none') : why.data?.explanation],
            [
              t('rollout.next'),
              holds === undefined || target === undefined ? null : holds === null ? (
                t('rollout.waits')
              ) : (
                <RelativeTime
                  key="next"
                  at={since === null ? null : new Date(Date.parse(since) + holds * 1000).toISOString()}
                />
              ),
            ],
          ]}
        />
        {canAct && (
          <Group gap="xs">
            {target !== undefined && isPromotable(policy, target) && (
              <Button size="xs" onClick={() => setDialog('promote')}>
                {t('promote.open')}
              </Button>
            )}
            <Button size="xs" variant="default" onClick={() => setDialog('policy')}>
              {t('policy.open')}
            </Button>
          </Group>
        )}
      </Stack>
      {dialog === 'policy' && <PolicyDialog service={service} onClose={close} />}
      {dialog === 'promote' && target !== undefined && (
        <PromoteDialog service={service} number={target.number} onClose={close} />
      )}
    </Card>
  );
}
