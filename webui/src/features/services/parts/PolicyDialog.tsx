import { Button, Checkbox, Group, Modal, NativeSelect, Stack, Textarea, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { type ServiceDetails, useSetPolicy } from '../queries';
import { type PolicyField, policyChangeOf, policyDraftOf, policyOf, rolloutKinds } from '../rollout';

/** Asks how revisions are rolled out: the steps of a canary, and what a new revision has to keep. */
export function PolicyDialog({ service, onClose }: { service: ServiceDetails; onClose: () => void }) {
  const { t } = useTranslation('services');
  const { t: common } = useTranslation('components');
  const save = useSetPolicy(service.endpoint_id);
  const [draft, setDraft] = useState(() => policyDraftOf(policyOf(service.policy)));
  const [wrong, setWrong] = useState<readonly PolicyField[]>([]);
  const change = (part: Partial<typeof draft>) => {
    setDraft((before) => ({ ...before, ...part }));
    setWrong([]);
    save.reset();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const read = policyChangeOf(draft);
    setWrong(read.wrong);
    if (read.wrong.length === 0) save.mutate(read.change, { onSuccess: onClose });
  };
  const field = (name: PolicyField) => ({
    label: t(`policy.${name}`),
    description: t(`policy.hint.${name}`),
    value: draft[name],
    autoComplete: 'off',
    error: wrong.includes(name) ? t('policy.malformed') : undefined,
    onChange: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value }),
  });
  return (
    <Modal
      opened
      onClose={onClose}
      title={t('policy.title', { name: service.name })}
      closeButtonProps={{ 'aria-label': common('close') }}
    >
      <form onSubmit={submit} noValidate>
        <Stack gap="sm">
          <NativeSelect
            label={t('rollout.kind')}
            data={rolloutKinds.map((kind) => ({ value: kind, label: t(`kind.${kind}`) }))}
            value={draft.kind}
            onChange={(event) =>
              change({ kind: rolloutKinds.find((kind) => kind === event.currentTarget.value) ?? draft.kind })
            }
          />
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
          {save.isError && <ProblemAlert error={save.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              {common('cancel')}
            </Button>
            <Button type="submit" loading={save.isPending}>
              {t('policy.save')}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
