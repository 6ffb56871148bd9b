import { Group, NativeSelect, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { errorsByField } from '../../../api/forms/fields';
import { FormDialog } from '../../../components/FormDialog';
import { comparators, type RuleField, ruleBodyOf, ruleDraftOf, ruleFields, type ScalingRule } from './drafts';
import { MetricFields } from './MetricFields';
import { useSaveRule } from './queries';

/** Asks for a rule: a step whenever a metric passes a threshold. */
export function RuleDialog({
  endpoint,
  rule,
  onClose,
}: {
  endpoint: string;
  rule: ScalingRule | null;
  onClose: () => void;
}) {
  const { t } = useTranslation('scaling');
  const save = useSaveRule(endpoint, rule?.id ?? null);
  const [draft, setDraft] = useState(() => ruleDraftOf(rule));
  const [wrong, setWrong] = useState<readonly RuleField[]>([]);
  const { errors, isPlaced } = errorsByField(save.error, ruleFields);
  const errorOf = (name: RuleField) => (wrong.includes(name) ? t('malformed') : errors[name]);
  const change = (part: Partial<typeof draft>) => {
    setDraft((before) => ({ ...before, ...part }));
    setWrong([]);
    save.reset();
  };
  const submit = () => {
    const read = ruleBodyOf(draft);
    setWrong(read.wrong);
    if (read.wrong.length === 0) save.mutate(read.body, { onSuccess: onClose });
  };
  const field = (name: 'threshold' | 'step' | 'cooldown' | 'min' | 'max') => ({
    label: t(`rule.${name}`),
    description: t(`rule.hint.${name}`),
    value: draft[name],
    autoComplete: 'off',
    error: errorOf(name),
    onChange: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value }),
  });
  return (
    <FormDialog
      title={t(rule === null ? 'rule.new' : 'rule.change')}
      action={t('save')}
      isBusy={save.isPending}
      error={isPlaced ? null : save.error}
      onSubmit={submit}
      onClose={onClose}
    >
      <MetricFields
        source={draft.source}
        metric={draft.metric}
        errors={{ source: errorOf('source'), metric: errorOf('metric') }}
        onChange={change}
      />
      <Group grow align="flex-start">
        <NativeSelect
          label={t('rule.comparator')}
          data={comparators.map((value) => ({ value, label: t(`comparators.${value}`) }))}
          value={draft.comparator}
          error={errorOf('comparator')}
          onChange={(event) => change({ comparator: event.currentTarget.value })}
        />
        <TextInput {...field('threshold')} inputMode="decimal" />
      </Group>
      <Group grow align="flex-start">
        <TextInput {...field('step')} />
        <TextInput {...field('cooldown')} />
      </Group>
      <Group grow align="flex-start">
        <TextInput {...field('min')} inputMode="numeric" />
        <TextInput {...field('max')} inputMode="numeric" />
      </Group>
    </FormDialog>
  );
}
