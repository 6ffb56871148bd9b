import { Button, Group, Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { SimpleTable } from '../../../components/SimpleTable';
import { Slots } from '../../../components/Slots';
import { useRecount } from '../configuration';

/** Recounts the slots that kernels hold, and names the agents for which something else is recorded. */
export function RecountCard() {
  const { t } = useTranslation('operations');
  const recount = useRecount();
  const drift = Object.entries(recount.data?.drift ?? {});
  const orphans = recount.data?.orphans ?? [];
  return (
    <Card title={t('recount.title')}>
      <Stack gap="sm">
        <Text size="sm" c="dimmed">
          {t('recount.means')}
        </Text>
        <Group>
          <Button variant="default" loading={recount.isPending} onClick={() => recount.mutate()}>
            {t('recount.action')}
          </Button>
        </Group>
        {recount.isError && <ProblemAlert error={recount.error} />}
        {recount.isSuccess &&
          (drift.length === 0 && orphans.length === 0 ? (
            <Notice tone="good" role="status" title={t('recount.right')} />
          ) : (
            <Notice
              tone="bad"
              role="status"
              title={t('recount.drift', { agents: drift.length, orphans: orphans.length })}
            >
              {orphans.length > 0 && <Text size="sm">{t('recount.orphans', { ids: orphans.join(', ') })}</Text>}
            </Notice>
          ))}
        {drift.length > 0 && (
          <SimpleTable
            label={t('recount.title')}
            rows={drift}
            idOf={([agent]) => agent}
            columns={[
              {
                label: t('recount.agent'),
                cell: ([agent]) => (
                  <AnchorLink to="/fleet/$id" params={{ id: agent }}>
                    {agent}
                  </AnchorLink>
                ),
              },
              { label: t('recount.recorded'), cell: ([, amounts]) => <Slots amounts={amounts.recorded ?? {}} /> },
              { label: t('recount.counted'), cell: ([, amounts]) => <Slots amounts={amounts.counted ?? {}} /> },
            ]}
          />
        )}
      </Stack>
    </Card>
  );
}
