import { Button, Group, Stack, Text, TextInput } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { useTask } from '../../../api/task';
import { Card } from '../../../components/Card';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { TaskNotice } from '../../../components/TaskNotice';
import { useFetch } from '../queries';

/** Imports one revision from a registry, as far as the registry lets the person. */
export function FetchCard() {
  const { t } = useTranslation('artifacts');
  const client = useQueryClient();
  const fetch = useFetch();
  const [registry, setRegistry] = useState('');
  const [name, setName] = useState('');
  const [version, setVersion] = useState('');
  const task = useTask(fetch.data ?? '', () => void client.invalidateQueries({ queryKey: ['artifacts'] }));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    fetch.mutate({ registry: registry.trim(), name: name.trim(), version: version.trim() || null });
  };
  const fields = fetch.isError ? asProblem(fetch.error).fields : {};
  return (
    <Card title={t('fetch.title')}>
      <form onSubmit={submit}>
        <Stack gap="sm" maw={560}>
          <Text size="sm" c="dimmed">
            {t('fetch.means')}
          </Text>
          <TextInput
            label={t('column.registry')}
            required
            withAsterisk={false}
            value={registry}
            error={fields.registry}
            onChange={(event) => setRegistry(event.currentTarget.value)}
          />
          <TextInput
            label={t('column.name')}
            placeholder="acme/tiny"
            required
            withAsterisk={false}
            value={name}
            error={fields.name}
            onChange={(event) => setName(event.currentTarget.value)}
          />
          <TextInput
            label={t('column.version')}
            placeholder="main"
            value={version}
            error={fields.version}
            onChange={(event) => setVersion(event.currentTarget.value)}
          />
          {fetch.isError && <ProblemAlert error={fetch.error} />}
          <Group>
            <Button type="submit" variant="default" loading={fetch.isPending} disabled={task?.state === 'running'}>
              {t('fetch.action')}
            </Button>
          </Group>
        </Stack>
      </form>
      <TaskNotice
        task={task}
        titles={{ running: t('fetch.running'), done: t('fetch.done'), failed: t('fetch.failed') }}
      />
    </Card>
  );
}
