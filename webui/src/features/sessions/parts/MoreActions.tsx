import { ActionIcon, Menu, SegmentedControl, Stack, Text, TextInput } from '@mantine/core';
import { IconDots } from '@tabler/icons-react';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { useTask } from '../../../api/task';
import { Confirm } from '../../../components/Confirm';
import { FormDialog } from '../../../components/FormDialog';
import { TaskNotice } from '../../../components/TaskNotice';
import type { SessionDetails } from '../queries';
import { isRunning } from '../rules';
import { useCommit, useRename, useRestart } from '../work';

interface DialogProps {
  session: SessionDetails;
  onClose: () => void;
}

function RenameDialog({ session, onClose }: DialogProps) {
  const { t } = useTranslation('sessionWork');
  const rename = useRename(session.id ?? '');
  const [name, setName] = useState(session.name ?? '');
  const problem = rename.isError ? asProblem(rename.error) : null;
  const isOfName = problem !== null && 'name' in problem.fields;
  return (
    <FormDialog
      title={t('rename.title', { name: session.name })}
      action={t('rename.action')}
      isBusy={rename.isPending}
      error={isOfName ? null : problem}
      onSubmit={() => {
        if (name.trim() === session.name) onClose();
        else rename.mutate(name.trim(), { onSuccess: onClose });
      }}
      onClose={onClose}
    >
      <TextInput
        label={t('rename.name')}
        data-autofocus
        value={name}
        maxLength={64}
        autoComplete="off"
        error={isOfName ? problem.message : undefined}
        onChange={(event) => {
          setName(event.currentTarget.value);
          rename.reset();
        }}
      />
    </FormDialog>
  );
}

function RestartDialog({ session, onClose }: DialogProps) {
  const { t } = useTranslation('sessionWork');
  const restart = useRestart(session.id ?? '');
  return (
    <Confirm
      isOpen
      title={t('restart.title', { name: session.name })}
      action={t('restart.action')}
      isBusy={restart.isPending}
      error={restart.error}
      onConfirm={() => restart.mutate(undefined, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('restart.loses')}</Text>
    </Confirm>
  );
}

const forms = ['archive', 'image'] as const;

function CommitDialog({ session, onClose }: DialogProps) {
  const { t } = useTranslation('sessionWork');
  const commit = useCommit(session.id ?? '');
  const [form, setForm] = useState<(typeof forms)[number]>('archive');
  const [name, setName] = useState('');
  const task = useTask(commit.data?.bgtask_id ?? '', () => undefined);
  const problem = commit.isError ? asProblem(commit.error) : null;
  const isOfName = problem !== null && 'image_name' in problem.fields;
  const isMissing = form === 'image' && name.trim() === '';
  return (
    <FormDialog
      title={t('commit.title', { name: session.name })}
      action={t(commit.data === undefined ? 'commit.action' : 'commit.close')}
      isBusy={commit.isPending}
      error={isOfName ? null : problem}
      onSubmit={() => {
        if (commit.data !== undefined) onClose();
        else if (!isMissing) commit.mutate(form === 'image' ? name.trim() : null);
      }}
      onClose={onClose}
    >
      <Text size="sm">{t('commit.keeps')}</Text>
      <SegmentedControl
        aria-label={t('commit.form')}
        disabled={commit.data !== undefined}
        data={forms.map((value) => ({ value, label: t(`commit.${value}`) }))}
        value={form}
        onChange={(value) => setForm(value as (typeof forms)[number])}
      />
      <Text size="sm" c="dimmed">
        {t(`commit.${form}Hint`)}
      </Text>
      {form === 'image' && (
        <TextInput
          label={t('commit.name')}
          value={name}
          maxLength={64}
          autoComplete="off"
          disabled={commit.data !== undefined}
          error={isOfName ? problem.message : undefined}
          onChange={(event) => {
            setName(event.currentTarget.value);
            commit.reset();
          }}
        />
      )}
      {commit.data !== undefined && (
        <Stack gap="xs">
          {commit.data.path && <Text size="sm">{t('commit.path', { path: commit.data.path })}</Text>}
          <TaskNotice
            task={task}
            titles={{ running: t('commit.running'), done: t('commit.done'), failed: t('commit.failed') }}
          />
        </Stack>
      )}
    </FormDialog>
  );
}

const dialogs = { rename: RenameDialog, restart: RestartDialog, commit: CommitDialog };

/** What can be done with a session beside ending it. */
export function MoreActions({ session }: { session: SessionDetails }) {
  const { t } = useTranslation('sessionWork');
  const [asked, setAsked] = useState<keyof typeof dialogs | null>(null);
  const Dialog = asked === null ? null : dialogs[asked];
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon variant="default" size="lg" aria-label={t('more')}>
            <IconDots size={16} aria-hidden />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Item onClick={() => setAsked('rename')}>{t('rename.open')}</Menu.Item>
          {isRunning(session.status) && (
            <>
              <Menu.Item onClick={() => setAsked('restart')}>{t('restart.open')}</Menu.Item>
              <Menu.Item onClick={() => setAsked('commit')}>{t('commit.open')}</Menu.Item>
            </>
          )}
        </Menu.Dropdown>
      </Menu>
      {Dialog !== null && <Dialog session={session} onClose={() => setAsked(null)} />}
    </>
  );
}
export default MoreActions;
