import { Text, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useTask } from '../../../api/task';
import { FormDialog } from '../../../components/FormDialog';
import { TaskNotice } from '../../../components/TaskNotice';
import { useInstall } from '../queries';
import type { Revision } from '../rules';

/** Makes an image of a revision on agents, and follows the task to its end. */
export function InstallDialog({ revision, onClose }: { revision: Revision; onClose: () => void }) {
  const { t } = useTranslation('artifacts');
  const install = useInstall();
  const [agents, setAgents] = useState('*');
  const [image, setImage] = useState('');
  const task = useTask(install.data ?? '', () => {});
  const isFaulty = agents.trim() === '';
  return (
    <FormDialog
      title={t('install.title', { version: revision.version })}
      action={t('install.action')}
      isBusy={install.isPending || task?.state === 'running'}
      error={install.error}
      onSubmit={() => {
        if (!isFaulty) install.mutate({ id: revision.id, agents: agents.trim(), image: image.trim() });
      }}
      onClose={onClose}
    >
      <Text>{t('install.means')}</Text>
      <TextInput
        label={t('install.agents')}
        description={t('install.agentsHint')}
        autoComplete="off"
        value={agents}
        error={isFaulty ? t('install.needed') : null}
        onChange={(event) => setAgents(event.currentTarget.value)}
      />
      <TextInput
        label={t('install.image')}
        description={t('install.imageHint')}
        autoComplete="off"
        value={image}
        onChange={(event) => setImage(event.currentTarget.value)}
      />
      <TaskNotice
        task={task}
        titles={{ running: t('install.running'), done: t('install.done'), failed: t('install.failed') }}
      />
    </FormDialog>
  );
}
