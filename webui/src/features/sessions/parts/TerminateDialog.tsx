import { Checkbox, List, Progress, Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { keys } from '../../../api/keys';
import type { Problem } from '../../../api/problems';
import { Confirm } from '../../../components/Confirm';
import { terminateAll } from '../queries';

const shownProblems = 20;

/** Asks before sessions are ended, ends them, and tells which could not be; those stay selected. */
export function TerminateDialog({
  sessions,
  onClose,
  onDone,
}: {
  sessions: readonly { id: string; name: string }[];
  onClose: () => void;
  onDone: (failed: ReadonlySet<string>) => void;
}) {
  const { t } = useTranslation('sessions');
  const client = useQueryClient();
  const [forced, setForced] = useState(false);
  const [done, setDone] = useState<number | null>(null);
  const [problems, setProblems] = useState<ReadonlyMap<string, Problem>>(new Map());
  const remaining = problems.size > 0 ? sessions.filter(({ id }) => problems.has(id)) : sessions;
  const count = remaining.length;
  const run = async () => {
    setDone(0);
    const failed = await terminateAll(
      remaining.map(({ id }) => id),
      forced,
      setDone,
    );
    setDone(null);
    setProblems(failed);
    await client.invalidateQueries({ queryKey: keys.sessions });
    for (const { id } of sessions) void client.invalidateQueries({ queryKey: keys.session(id) });
    onDone(new Set(failed.keys()));
    if (failed.size === 0) onClose();
  };
  return (
    <Confirm
      isOpen
      title={t('terminate.title', { count, name: remaining[0]?.name ?? '' })}
      action={problems.size > 0 ? t('terminate.again') : t('terminate.action')}
      isBusy={done !== null}
      onConfirm={() => void run()}
      onClose={onClose}
    >
      <Text>{t('terminate.loses')}</Text>
      <Checkbox
        label={t('terminate.forced')}
        description={t('terminate.forcedHint')}
        checked={forced}
        onChange={(event) => setForced(event.currentTarget.checked)}
      />
      {done !== null && <Progress value={(100 * done) / Math.max(1, count)} aria-label={t('terminate.progress')} />}
      {problems.size > 0 && (
        <div role="alert">
          <Text c="var(--app-bad)">{t('terminate.failed', { count: problems.size })}</Text>
          <List size="sm">
            {remaining.slice(0, shownProblems).map(({ id, name }) => (
              <List.Item key={id}>
                {name}: {problems.get(id)?.message}
              </List.Item>
            ))}
          </List>
        </div>
      )}
    </Confirm>
  );
}
