import { NativeSelect, Switch, TextInput } from '@mantine/core';
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { bytesOf } from '../../../api/amounts';
import { asProblem } from '../../../api/problems';
import { FormDialog } from '../../../components/FormDialog';
import { useCreateFolder, useFolderProjects, useHosts } from '../queries';
import { nameFault, newFolderOf, usageModes } from '../rules';

const empty = { name: '', project: '', host: '', usage: 'general', permission: 'rw', quota: '', isCloneable: false };

/** Makes a folder of the person, or of a project. */
export function CreateDialog({ onClose }: { onClose: () => void }) {
  const { t } = useTranslation('folders');
  const navigate = useNavigate();
  const create = useCreateFolder();
  const projects = useFolderProjects().data ?? [];
  const [draft, setDraft] = useState(empty);
  const [isTouched, setTouched] = useState(false);
  const { data: hosts } = useHosts(draft.project);
  const names = [...new Set([hosts?.default ?? '', ...(hosts?.allowed ?? [])])].filter((name) => name !== '');
  const host = names.includes(draft.host) ? draft.host : (names[0] ?? '');
  const change = (fields: Partial<typeof empty>) => {
    create.reset();
    setDraft((before) => ({ ...before, ...fields }));
  };
  const fault = nameFault(draft.name);
  const isQuotaFaulty = draft.quota.trim() !== '' && bytesOf(draft.quota) === null;
  const refused = create.isError ? asProblem(create.error) : null;
  const isRefusedQuota = refused !== null && 'quota' in refused.fields;
  const submit = () => {
    setTouched(true);
    if (fault !== null || isQuotaFaulty) return;
    create.mutate(newFolderOf({ ...draft, host }), {
      onSuccess: (made) => void navigate({ to: '/folders/$id', params: { id: made.id } }),
    });
  };
  return (
    <FormDialog
      title={t('create.title')}
      action={t('create.action')}
      size="md"
      isBusy={create.isPending}
      error={isRefusedQuota ? null : refused}
      onSubmit={submit}
      onClose={onClose}
    >
      <TextInput
        label={t('create.name')}
        data-autofocus
        value={draft.name}
        maxLength={255}
        autoComplete="off"
        error={isTouched && fault !== null ? t(`fault.${fault}`) : null}
        onChange={(event) => change({ name: event.currentTarget.value })}
      />
      {projects.length > 0 && (
        <NativeSelect
          label={t('create.owner')}
          data={[
            { value: '', label: t('mine') },
            ...projects.map(({ id, name, domain }) => ({ value: id, label: `${name} (${domain})` })),
          ]}
          value={draft.project}
          onChange={(event) => change({ project: event.currentTarget.value })}
        />
      )}
      {names.length > 1 && (
        <NativeSelect
          label={t('host')}
          data={names}
          value={host}
          onChange={(event) => change({ host: event.currentTarget.value })}
        />
      )}
      <NativeSelect
        label={t('create.usage')}
        data={usageModes.map((value) => ({ value, label: t(`usage.${value}`) }))}
        value={draft.usage}
        onChange={(event) => change({ usage: event.currentTarget.value })}
      />
      {draft.project !== '' && (
        <NativeSelect
          label={t('create.permission')}
          data={[
            { value: 'rw', label: t('access.rw') },
            { value: 'ro', label: t('access.ro') },
          ]}
          value={draft.permission}
          onChange={(event) => change({ permission: event.currentTarget.value })}
        />
      )}
      <TextInput
        label={t('create.quota')}
        description={t('create.quotaHint')}
        value={draft.quota}
        autoComplete="off"
        error={
          isTouched && isQuotaFaulty ? t('create.quotaFault') : isRefusedQuota ? refused.detail || refused.title : null
        }
        onChange={(event) => change({ quota: event.currentTarget.value })}
      />
      <Switch
        label={t('share.cloneable')}
        checked={draft.isCloneable}
        onChange={(event) => change({ isCloneable: event.currentTarget.checked })}
      />
    </FormDialog>
  );
}
export default CreateDialog;
