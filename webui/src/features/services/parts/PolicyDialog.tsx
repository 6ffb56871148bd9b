import { Button, Group, Modal, Stack } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { type ServiceDetails, useSetPolicy } from '../queries';
import { type PolicyField, policyChangeOf, policyDraftOf, policyOf } from '../rollout';
import { PolicyFields } from './PolicyFields';

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
  return (
    <Modal
      opened
      onClose={onClose}
      title={t('policy.title', { name: service.name })}
      closeButtonProps={{ 'aria-label': common('close') }}
    >
      <form onSubmit={submit} noValidate>
        <Stack gap="sm">
          <PolicyFields draft={draft} wrong={wrong} change={change} />
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
