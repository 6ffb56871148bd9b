import { Button, Radio, Stack, TagsInput, Text } from '@mantine/core';
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { FormDialog } from '../../../components/FormDialog';
import { useDeleteArtifact, useShareArtifact } from '../queries';
import { type Artifact, type Audience, audienceOf, isViewer, viewersOf } from '../rules';

const audiences: readonly Audience[] = ['registry', 'everyone', 'nobody', 'some'];

interface DialogProps {
  artifact: Artifact;
  onClose: () => void;
}

function ShareDialog({ artifact, onClose }: DialogProps) {
  const { t } = useTranslation('artifacts');
  const share = useShareArtifact();
  const before = audienceOf(artifact.viewers);
  const [audience, setAudience] = useState(before);
  const [names, setNames] = useState(before === 'some' ? (artifact.viewers ?? []) : []);
  const [isTouched, setTouched] = useState(false);
  const isFaulty = audience === 'some' && (names.length === 0 || !names.every(isViewer));
  const submit = () => {
    setTouched(true);
    if (isFaulty) return;
    share.mutate({ id: artifact.id, viewers: viewersOf(audience, names) }, { onSuccess: onClose });
  };
  return (
    <FormDialog
      title={t('share.title', { name: artifact.name })}
      action={t('share.action')}
      isBusy={share.isPending}
      error={share.error}
      onSubmit={submit}
      onClose={onClose}
    >
      <Radio.Group
        label={t('fact.viewers')}
        value={audience}
        onChange={(value) => {
          setAudience(value as Audience);
          share.reset();
        }}
      >
        <Stack gap="xs" mt="xs">
          {audiences.map((value) => (
            <Radio key={value} value={value} label={t(`share.${value}`)} />
          ))}
        </Stack>
      </Radio.Group>
      {audience === 'some' && (
        <TagsInput
          label={t('share.names')}
          description={t('share.namesHint')}
          placeholder="domain:default"
          value={names}
          error={isTouched && isFaulty ? t('share.faulty') : null}
          onChange={setNames}
        />
      )}
      <Text size="sm">{t('share.means')}</Text>
    </FormDialog>
  );
}

function DeleteDialog({ artifact, onClose }: DialogProps) {
  const { t } = useTranslation('artifacts');
  const navigate = useNavigate();
  const remove = useDeleteArtifact();
  return (
    <Confirm
      isOpen
      title={t('delete.title', { name: artifact.name })}
      action={t('delete.action')}
      isBusy={remove.isPending}
      error={remove.error}
      onConfirm={() => remove.mutate(artifact.id, { onSuccess: () => void navigate({ to: '/artifacts' }) })}
      onClose={onClose}
    >
      <Text>{t('delete.means', { count: artifact.revisions.length })}</Text>
    </Confirm>
  );
}

/** What superadmins may do with a whole artifact. */
export function ArtifactActions({ artifact }: { artifact: Artifact }) {
  const { t } = useTranslation('artifacts');
  const [Dialog, setDialog] = useState<typeof ShareDialog | null>(null);
  return (
    <>
      <Button variant="default" onClick={() => setDialog(() => ShareDialog)}>
        {t('share.open')}
      </Button>
      <Button variant="default" onClick={() => setDialog(() => DeleteDialog)}>
        {t('delete.action')}
      </Button>
      {Dialog !== null && <Dialog artifact={artifact} onClose={() => setDialog(null)} />}
    </>
  );
}
