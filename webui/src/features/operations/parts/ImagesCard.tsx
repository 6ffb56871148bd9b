import { Code, Stack, Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useTask } from '../../../api/task';
import { Card } from '../../../components/Card';
import { Copy } from '../../../components/Copy';
import { Query } from '../../../components/Query';
import { SearchField } from '../../../components/SearchField';
import { SimpleTable } from '../../../components/SimpleTable';
import { TaskNotice } from '../../../components/TaskNotice';
import { useOperatorImages } from '../queries';
import { ImagesTable } from './ImagesTable';

const localCommands = [
  { name: 'import', text: 'backend.ai image import SOURCE NAME' },
  { name: 'list', text: 'backend.ai image list --data-dir DIR' },
  { name: 'rm', text: 'backend.ai image rm NAME' },
] as const;

/** The images with their acts, and how far the last act on agents is. */
export function ImagesCard() {
  const { t } = useTranslation('operations');
  const { q = '' } = useSearch({ from: '/shell/registries' });
  const navigate = useNavigate();
  const client = useQueryClient();
  const [taskId, setTaskId] = useState('');
  const task = useTask(taskId, () => void client.invalidateQueries({ queryKey: ['images'] }));
  return (
    <Card title={t('registries.images')}>
      <Stack gap="sm">
        <SearchField
          label={t('registries.find')}
          clearLabel={t('clear')}
          value={q}
          onChange={(text) =>
            void navigate({ to: '/registries', search: text === '' ? {} : { q: text }, replace: true })
          }
        />
        <TaskNotice
          task={task}
          titles={{
            running: t('images.task.running'),
            done: t('images.task.done'),
            failed: t('images.task.failed'),
          }}
        />
        <Query query={useOperatorImages()}>
          {(images) => <ImagesTable images={images} q={q} onTask={setTaskId} />}
        </Query>
      </Stack>
    </Card>
  );
}

/** How root file systems become images: on the computer of an agent, where their files are. */
export function LocalImagesCard() {
  const { t } = useTranslation('operations');
  return (
    <Card title={t('images.local')}>
      <Text size="sm" mb="sm">
        {t('images.localMeans')}
      </Text>
      <SimpleTable
        label={t('images.local')}
        rows={localCommands}
        idOf={({ name }) => name}
        columns={[
          { label: t('column.action'), cell: ({ name }) => t(`images.localActs.${name}`) },
          { label: t('images.command'), cell: ({ text }) => <Code>{text}</Code> },
          {
            label: t('images.copy'),
            cell: ({ name, text }) => <Copy value={text} label={t(`images.copyOf.${name}`)} />,
          },
        ]}
      />
    </Card>
  );
}
