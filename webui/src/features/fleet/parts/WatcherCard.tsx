import { Button, Group, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Facts } from '../../../components/Facts';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { useWatcher, useWatcherAct, type WatcherAct } from '../queries';

const acts = ['start', 'restart', 'stop'] as const;

/** Starts, stops and restarts the agent of a node by its watcher, once somebody has asked the watcher how it is. */
export function WatcherCard({ id }: { id: string }) {
  const { t } = useTranslation('fleet');
  const [asks, setAsks] = useState(false);
  const [chosen, setChosen] = useState<WatcherAct | null>(null);
  const query = useWatcher(id, asks);
  const act = useWatcherAct(id);
  const close = () => setChosen(null);
  return (
    <Card title={t('watcher.title')}>
      <Stack gap="sm">
        <Text size="sm" c="dimmed">
          {t('watcher.means')}
        </Text>
        {!asks ? (
          <Group>
            <Button variant="default" onClick={() => setAsks(true)}>
              {t('watcher.ask')}
            </Button>
          </Group>
        ) : (
          <Query query={query} rows={1}>
            {(status) => (
              <Stack gap="sm">
                <Facts rows={[[t('watcher.status'), status]]} />
                <Group gap="xs">
                  {acts.map((name) => (
                    <Button
                      key={name}
                      variant="default"
                      loading={act.isPending && act.variables === name}
                      onClick={() => (name === 'start' ? act.mutate('start') : setChosen(name))}
                    >
                      {t(`watcher.${name}`)}
                    </Button>
                  ))}
                </Group>
                {act.isError && chosen === null && <ProblemAlert error={act.error} />}
              </Stack>
            )}
          </Query>
        )}
      </Stack>
      {chosen !== null && chosen !== 'start' && (
        <Confirm
          isOpen
          title={t(`watcher.${chosen}Of`, { id })}
          action={t(`watcher.${chosen}`)}
          isDangerous={chosen === 'stop'}
          isBusy={act.isPending}
          error={act.error}
          onConfirm={() => act.mutate(chosen, { onSuccess: close })}
          onClose={close}
        >
          <Text>{t(`watcher.${chosen}Means`)}</Text>
        </Confirm>
      )}
    </Card>
  );
}
