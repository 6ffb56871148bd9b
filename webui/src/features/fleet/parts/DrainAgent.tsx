import { Button, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { Confirm } from '../../../components/Confirm';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { type AgentDetails, useSetSchedulable } from '../queries';
import { sessionsOn } from '../rules';
import { SessionLinks } from './SessionLinks';

/** Takes an agent out of scheduling, and back. Its sessions go on: they are named, so that nobody is surprised. */
export function DrainAgent({ agent }: { agent: AgentDetails }) {
  const { t } = useTranslation('fleet');
  const change = useSetSchedulable(agent.id ?? '');
  const [asks, setAsks] = useState(false);
  if (useRole() !== 'superadmin') return null;
  const sessions = sessionsOn(agent);
  if (!agent.schedulable) {
    return (
      <Stack gap="xs">
        <Button loading={change.isPending} onClick={() => change.mutate(true)}>
          {t('drain.back')}
        </Button>
        {change.isError && <ProblemAlert error={change.error} />}
      </Stack>
    );
  }
  return (
    <>
      <Button
        variant="default"
        onClick={() => {
          change.reset();
          setAsks(true);
        }}
      >
        {t('drain.action')}
      </Button>
      <Confirm
        isOpen={asks}
        title={t('drain.confirm', { id: agent.id })}
        action={t('drain.action')}
        isDangerous={false}
        isBusy={change.isPending}
        error={change.error}
        onConfirm={() => change.mutate(false, { onSuccess: () => setAsks(false) })}
        onClose={() => setAsks(false)}
      >
        <Text>{t('drain.means')}</Text>
        <Text>{t('drain.sessions', { count: sessions.length })}</Text>
        <SessionLinks ids={sessions} />
      </Confirm>
    </>
  );
}
