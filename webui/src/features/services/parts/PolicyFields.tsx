import { Checkbox, NativeSelect, Stack, Textarea, TextInput } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { type PolicyDraft, type PolicyField, rolloutKinds } from '../rollout';

/** The fields of a roll-out policy: its kind, its steps, and what a new revision has to keep. */
export function PolicyFields({
  draft,
  wrong,
  change,
}: {
  draft: PolicyDraft;
  wrong: readonly PolicyField[];
  change: (part: Partial<PolicyDraft>) => void;
}) {
  const { t } = useTranslation('services');
  const field = (name: PolicyField) => ({
    label: t(`policy.${name}`),
    description: t(`policy.hint.${name}`),
    value: draft[name],
    autoComplete: 'off',
    error: wrong.includes(name) ? t('policy.malformed') : undefined,
    onChange: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value }),
  });
  return (
    <Stack gap="sm">
      <NativeSelect
        label={t('rollout.kind')}
        data={rolloutKinds.map((kind) => ({ value: kind, label: t(`kind.${kind}`) }))}
        value={draft.kind}
        onChange={(event) =>
          change({ kind: rolloutKinds.find((kind) => kind === event.currentTarget.value) ?? draft.kind })
        }
      />
      {draft.kind === 'rolling' &&
        (['surge', 'unavailable'] as const).map((name) => (
          <TextInput key={name} {...field(name)} inputMode="numeric" />
        ))}
      {draft.kind === 'canary' && <Textarea {...field('steps')} autosize minRows={2} />}
      {draft.kind === 'blue-green' && <TextInput {...field('watch')} />}
      <Checkbox
        label={t('policy.hasGuard')}
        description={t('policy.hint.hasGuard')}
        checked={draft.hasGuard}
        onChange={(event) => change({ hasGuard: event.currentTarget.checked })}
      />
      {draft.hasGuard &&
        (['errorPercent', 'firstByteRatio', 'tokenRatio', 'requests'] as const).map((name) => (
          <TextInput key={name} {...field(name)} inputMode="decimal" />
        ))}
    </Stack>
  );
}
