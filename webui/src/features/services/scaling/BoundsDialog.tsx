import { Checkbox, Group, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { errorsByField } from '../../../api/forms/fields';
import { FormDialog } from '../../../components/FormDialog';
import { type BoundsField, boundsChangeOf, boundsDraftOf, boundsFields, type Scaling } from './drafts';
import { MetricFields } from './MetricFields';
import { useSetScaling } from './queries';

/** Asks between which numbers of replicas a service is scaled, and to which load. */
export function BoundsDialog({
  endpoint,
  scaling,
  onClose,
}: {
  endpoint: string;
  scaling: Scaling;
  onClose: () => void;
}) {
  const { t } = useTranslation('scaling');
  const save = useSetScaling(endpoint);
  const [draft, setDraft] = useState(() => boundsDraftOf(scaling));
  const [wrong, setWrong] = useState<readonly BoundsField[]>([]);
  const { errors, isPlaced } = errorsByField(save.error, boundsFields);
  const errorOf = (name: BoundsField) => (wrong.includes(name) ? t('malformed') : errors[name]);
  const change = (part: Partial<typeof draft>) => {
    setDraft((before) => ({ ...before, ...part }));
    setWrong([]);
    save.reset();
  };
  const submit = () => {
    const read = boundsChangeOf(draft, scaling);
    setWrong(read.wrong);
    if (read.wrong.length > 0) return;
    if (scaling.is_enabled && Object.keys(read.body).length === 0) onClose();
    else save.mutate(read.body, { onSuccess: onClose });
  };
  const field = (name: 'min' | 'max' | 'idle' | 'downDelay' | 'target') => ({
    label: t(`field.${name}`),
    description: t(`hint.${name}`),
    value: draft[name],
    autoComplete: 'off',
    error: errorOf(name),
    onChange: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value }),
  });
  return (
    <FormDialog
      title={t('bounds.title')}
      action={t('save')}
      isBusy={save.isPending}
      error={isPlaced ? null : save.error}
      onSubmit={submit}
      onClose={onClose}
    >
      <Group grow align="flex-start">
        <TextInput {...field('min')} inputMode="numeric" />
        <TextInput {...field('max')} inputMode="numeric" />
      </Group>
      <Checkbox
        label={t('field.hasTarget')}
        description={t('hint.hasTarget')}
        checked={draft.hasTarget}
        onChange={(event) => change({ hasTarget: event.currentTarget.checked })}
      />
      {draft.hasTarget && (
        <>
          <TextInput {...field('target')} inputMode="decimal" />
          <MetricFields
            source={draft.source}
            metric={draft.metric}
            errors={{ source: errorOf('source'), metric: errorOf('metric') }}
            onChange={change}
          />
        </>
      )}
      <Group grow align="flex-start">
        <TextInput {...field('idle')} />
        <TextInput {...field('downDelay')} />
      </Group>
    </FormDialog>
  );
}
