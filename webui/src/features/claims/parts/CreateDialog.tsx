import { NativeSelect, Textarea, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useGroupSlots, useResourceGroups } from '../../../api/choices';
import { useMe } from '../../../api/me';
import { FormDialog } from '../../../components/FormDialog';
import { useCreateClaim } from '../queries';
import { acceleratorsOf, type Draft, type Fault, faultsOf, newClaimOf } from '../rules';

const empty: Draft = { name: '', resources: '', requests: '', idleTimeout: '', project: '', group: '' };

/** Makes a claim, which holds nothing until a session uses it. */
export function CreateDialog({ onMade, onClose }: { onMade: (id: string) => void; onClose: () => void }) {
  const { t } = useTranslation('claims');
  const create = useCreateClaim();
  const user = useMe().data?.user;
  const [draft, setDraft] = useState(empty);
  const [isTouched, setTouched] = useState(false);
  const projects = (user?.groups ?? []).flatMap((group) => group?.name ?? []);
  const project = draft.project || (projects[0] ?? '');
  const groups = useResourceGroups(project).data ?? [];
  const group = groups.includes(draft.group) ? draft.group : (groups[0] ?? '');
  const accelerators = acceleratorsOf(Object.keys(useGroupSlots(group).data ?? {}));
  const faults = faultsOf(draft);
  const change = (fields: Partial<Draft>) => {
    create.reset();
    setDraft((before) => ({ ...before, ...fields }));
  };
  const errorOf = (fault: Fault) => (isTouched && faults.has(fault) ? t(`fault.${fault}`) : null);
  const submit = () => {
    setTouched(true);
    if (faults.size > 0) return;
    create.mutate(newClaimOf({ ...draft, project, group }, user?.domain_name ?? ''), {
      onSuccess: ({ id }) => onMade(id),
    });
  };
  return (
    <FormDialog
      title={t('create.title')}
      action={t('create.action')}
      isBusy={create.isPending}
      error={create.error}
      onSubmit={submit}
      onClose={onClose}
    >
      <TextInput
        label={t('column.name')}
        data-autofocus
        autoComplete="off"
        maxLength={64}
        value={draft.name}
        error={errorOf('name')}
        onChange={(event) => change({ name: event.currentTarget.value })}
      />
      {projects.length > 1 && (
        <NativeSelect
          label={t('fact.project')}
          data={projects}
          value={project}
          onChange={(event) => change({ project: event.currentTarget.value })}
        />
      )}
      {groups.length > 0 && (
        <NativeSelect
          label={t('fact.group')}
          data={groups}
          value={group}
          onChange={(event) => change({ group: event.currentTarget.value })}
        />
      )}
      <TextInput
        label={t('column.slots')}
        description={
          accelerators.length === 0
            ? t('create.resourcesHint')
            : t('create.resourcesOf', { names: accelerators.join(', ') })
        }
        autoComplete="off"
        value={draft.resources}
        error={errorOf('resources')}
        onChange={(event) => change({ resources: event.currentTarget.value })}
      />
      <Textarea
        label={t('fact.requests')}
        description={t('create.requestsHint')}
        autosize
        minRows={1}
        maxRows={8}
        value={draft.requests}
        error={errorOf('requests')}
        onChange={(event) => change({ requests: event.currentTarget.value })}
      />
      <TextInput
        label={t('fact.idleTimeout')}
        description={t('create.idleTimeoutHint')}
        autoComplete="off"
        value={draft.idleTimeout}
        error={errorOf('idleTimeout')}
        onChange={(event) => change({ idleTimeout: event.currentTarget.value })}
      />
    </FormDialog>
  );
}
export default CreateDialog;
