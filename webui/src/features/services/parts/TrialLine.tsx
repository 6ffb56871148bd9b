import { Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { Notice } from '../../../components/Notice';
import { useTrial } from '../trial';

const tones = { running: 'info', done: 'good', failed: 'bad', lost: 'wait' } as const;

/** Tells how far the trial of a task is. */
export function TrialLine({ taskId }: { taskId: string }) {
  const { t } = useTranslation('services');
  const trial = useTrial(taskId);
  const state = trial?.state ?? 'running';
  return (
    <Notice tone={tones[state]} role="status" title={t(`trial.${state}`)}>
      {trial && trial.steps > 0 && state === 'running' && (
        <Text size="sm">{t('trial.step', { step: Math.min(trial.step + 1, trial.steps), steps: trial.steps })}</Text>
      )}
      {trial && trial.message !== '' && <Text size="sm">{trial.message}</Text>}
    </Notice>
  );
}
