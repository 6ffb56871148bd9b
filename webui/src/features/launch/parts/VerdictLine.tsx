import { Anchor, Button, Group, List, Stack, Text } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { Slots } from '../../../components/Slots';
import { StatusBadge } from '../../../components/StatusBadge';
import { type Explanation, verdictTone } from '../rules';

const maxShown = 4;

function Holders({ explanation }: { explanation: Explanation }) {
  const { t } = useTranslation('launch');
  const { count, visible } = explanation.holders ?? { count: 0, visible: [] };
  if (!count) return null;
  const shown = (visible ?? []).slice(0, maxShown);
  return (
    <Text size="sm">
      {t('verdict.heldBy')}{' '}
      {shown.map((session, place) => (
        <span key={session.id}>
          {place > 0 && ', '}
          <Anchor component={Link} to="/sessions/$id" params={{ id: session.id } as never}>
            {session.name}
          </Anchor>
        </span>
      ))}
      {count > shown.length && ` ${t('verdict.others', { count: count - shown.length })}`}
    </Text>
  );
}

/** Says whether the request starts now, waits or cannot start, why, and what would help. */
export function VerdictLine({
  explanation,
  isStale,
  onTake,
}: {
  explanation: Explanation;
  isStale: boolean;
  onTake: (nearest: NonNullable<Explanation['nearest']>[number]) => void;
}) {
  const { t, i18n } = useTranslation(['launch', 'sessions']);
  const reasonOf = ({ reason, message }: Explanation) =>
    reason && i18n.exists(`reason.${reason}`, { ns: 'sessions' })
      ? t(`sessions:reason.${reason}` as 'sessions:reason.not-yet')
      : (message ?? '');
  const agents = explanation.agents;
  const startable = agents?.startable ?? 0;
  const total = agents?.total ?? 0;
  // Each reason has a sentence in each language; what the manager adds to it, with amounts and names, is English.
  const reason = reasonOf(explanation);
  const known = `remedy.${explanation.remedy ?? 'time'}` as 'remedy.time';
  return (
    <Stack gap="xs" aria-busy={isStale} aria-live="polite" style={{ opacity: isStale ? 0.6 : 1 }}>
      <div>
        <StatusBadge tone={verdictTone(explanation)} label={t(`verdict.${explanation.verdict}` as 'verdict.now')} />
      </div>
      {explanation.verdict === 'now' ? (
        <Text size="sm">{t('verdict.agents', { startable, total })}</Text>
      ) : (
        <>
          <Text size="sm" fw={600}>
            {reason}
          </Text>
          <Text size="sm">{t(known)}</Text>
          {explanation.message !== reason && (
            <Text size="xs" c="dimmed" lang="en">
              {explanation.message}
            </Text>
          )}
          {(explanation.count ?? 1) > 1 && (
            <Text size="sm">{t('verdict.someNow', { placed: explanation.placed, count: explanation.count })}</Text>
          )}
          <Holders explanation={explanation} />
          {(agents?.excluded ?? []).length > 0 && (
            <List size="sm" withPadding>
              {(agents?.excluded ?? []).map((each) => (
                <List.Item key={each.reason}>
                  {t('verdict.excluded', { count: each.count })}{' '}
                  {t(`excluded.${each.reason}` as 'excluded.busy', { defaultValue: each.reason })}
                </List.Item>
              ))}
            </List>
          )}
          {(explanation.limits ?? [])
            .filter((limit) => limit.is_exceeded)
            .map((limit) => (
              <Text size="sm" key={`${limit.scope}-${limit.slot}`}>
                {t(`scope.${limit.scope}` as 'scope.keypair', { defaultValue: limit.scope })}{' '}
                <Slots amounts={{ [limit.slot]: limit.limit }} /> · {t('verdict.used')}{' '}
                <Slots amounts={{ [limit.slot]: limit.used }} />
              </Text>
            ))}
          {(explanation.nearest ?? []).map((nearest) => (
            <Group key={JSON.stringify(nearest)} gap="xs" wrap="nowrap">
              <Button size="compact-sm" variant="default" onClick={() => onTake(nearest)}>
                {t('verdict.take')}
              </Button>
              <Text size="sm">
                <Slots amounts={nearest.resources} />
                {nearest.cluster_size > 1 && ` × ${nearest.cluster_size}`} {t('verdict.wouldStart')}
              </Text>
            </Group>
          ))}
        </>
      )}
    </Stack>
  );
}
