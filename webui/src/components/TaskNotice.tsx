import { Progress, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import type { TaskState } from '../api/task';
import { Notice } from './Notice';

const tones = { running: 'wait', done: 'good', failed: 'bad', lost: 'wait' } as const;

/** Says how far a background task is, and how it ended. `titles` name its states but the one that all have in common. */
export function TaskNotice({
  task,
  titles,
}: {
  task: TaskState | null;
  titles: Record<Exclude<TaskState['state'], 'lost'>, string>;
}) {
  const { t } = useTranslation('components');
  if (task === null) return null;
  return (
    <Notice tone={tones[task.state]} role="status" title={task.state === 'lost' ? t('taskLost') : titles[task.state]}>
      <Text size="sm">{task.message}</Text>
      {task.state === 'running' && task.part !== null && (
        <Progress value={task.part * 100} aria-label={t('progress')} />
      )}
    </Notice>
  );
}
