import { Checkbox, MultiSelect, Text, Textarea, TextInput } from '@mantine/core';
import { useNavigate } from '@tanstack/react-router';
import { useEffect, useRef, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useMountableFolders } from '../../../api/choices';
import { errorsByField } from '../../../api/forms/fields';
import { FormDialog } from '../../../components/FormDialog';
import { MountFields } from '../../../components/MountFields';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { type TemplateRow, useStartFrom } from '../queries';
import type { Kind } from '../rules';
import { changesOf, emptyStart, type StartDraft, type StartField, startFields } from '../start';

/** Starts a session from a template with other resources, variables, mounts or another claim than it says. */
export function StartDialog({ kind, template, onClose }: { kind: Kind; template: TemplateRow; onClose: () => void }) {
  const { t } = useTranslation('templates');
  const navigate = useNavigate();
  const folders = useMountableFolders();
  const start = useStartFrom(kind);
  const [draft, setDraft] = useState(emptyStart);
  const [wrong, setWrong] = useState<readonly StartField[]>([]);
  const token = useRef(crypto.randomUUID());
  const text = JSON.stringify(draft);
  useEffect(() => {
    if (text) token.current = crypto.randomUUID(); // another request is another session
  }, [text]);
  const { errors, isPlaced } = errorsByField(start.error, startFields);
  const errorOf = (name: StartField) => (wrong.includes(name) ? t('override.malformed') : errors[name]);
  const change = (part: Partial<StartDraft>) => {
    setDraft((before) => ({ ...before, ...part }));
    setWrong([]);
    start.reset();
  };
  const submit = () => {
    const read = changesOf(draft);
    setWrong(read.wrong);
    if (read.wrong.length > 0) return;
    start.mutate(
      { id: template.id, changes: read.changes, token: token.current },
      { onSuccess: (session) => void navigate({ to: '/sessions/$id', params: { id: session } }) },
    );
  };
  const field = (name: 'name' | 'resources' | 'env' | 'claim') => ({
    value: draft[name],
    autoComplete: 'off',
    spellCheck: false,
    error: errorOf(name),
    onChange: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value }),
  });
  return (
    <FormDialog
      title={t('startOf', { name: template.name })}
      action={t('start')}
      isBusy={start.isPending}
      error={isPlaced ? null : start.error}
      onSubmit={submit}
      onClose={onClose}
    >
      <Text size="sm">{t('override.hint')}</Text>
      <TextInput {...field('name')} label={t('override.name')} maxLength={64} />
      <Textarea
        {...field('resources')}
        label={t('override.resources')}
        description={t('override.resourcesHint')}
        autosize
        minRows={1}
        maxRows={8}
      />
      <Textarea
        {...field('env')}
        label={t('override.env')}
        description={t('override.envHint')}
        autosize
        minRows={1}
        maxRows={8}
      />
      {folders.isError && <ProblemAlert error={folders.error} onRetry={() => void folders.refetch()} />}
      <MultiSelect
        label={t('override.mounts')}
        searchable
        data={[...new Set((folders.data ?? []).map((folder) => folder.name))]}
        value={draft.mounts}
        onChange={(mounts) => change({ mounts })}
        nothingFoundMessage={t('override.noFolder')}
        error={errorOf('mounts')}
      />
      <MountFields
        draft={draft}
        change={change}
        pathLabel={(name) => t('override.path', { name })}
        readOnlyLabel={(name) => t('override.readOnly', { name })}
      />
      <TextInput
        {...field('claim')}
        label={t('override.claim')}
        description={t('override.claimHint')}
        maxLength={64}
        disabled={draft.isUnclaimed}
      />
      <Checkbox
        label={t('override.unclaimed')}
        checked={draft.isUnclaimed}
        onChange={(event) => change({ isUnclaimed: event.currentTarget.checked })}
      />
    </FormDialog>
  );
}
