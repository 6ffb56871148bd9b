import { Button, Menu, Text, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { Confirm } from '../../../components/Confirm';
import { FormDialog } from '../../../components/FormDialog';
import { referenceOf } from '../images';
import { type OperatorImage, useForgetImage, usePreloadImage, useUnloadImage } from '../queries';

interface Props {
  image: OperatorImage;
  /** Is called with the id of the background task. */
  onTask: (id: string) => void;
}

interface DialogProps extends Props {
  onClose: () => void;
}

/** Asks for the agents on which an image is fetched, or from which it is removed. */
function PlaceDialog({ act, image, onTask, onClose }: DialogProps & { act: 'preload' | 'unload' }) {
  const { t } = useTranslation('operations');
  const preload = usePreloadImage();
  const unload = useUnloadImage();
  const start = act === 'preload' ? preload : unload;
  const reference = referenceOf(image);
  const [agents, setAgents] = useState('*');
  const wrong = start.isError ? asProblem(start.error).fields.target_agents : undefined;
  return (
    <FormDialog
      title={t(`images.${act}Of`, { name: reference })}
      action={t(`images.${act}`)}
      isBusy={start.isPending}
      error={start.error}
      onSubmit={() =>
        start.mutate(
          { reference, architecture: image.architecture ?? '', agents: agents.trim() },
          {
            onSuccess: (id) => {
              onTask(id);
              onClose();
            },
          },
        )
      }
      onClose={onClose}
    >
      <Text>{t(`images.${act}Means`)}</Text>
      <TextInput
        label={t('images.agents')}
        description={t('images.agentsHint')}
        required
        withAsterisk={false}
        maxLength={4096}
        value={agents}
        error={wrong !== undefined}
        onChange={(event) => setAgents(event.currentTarget.value)}
      />
    </FormDialog>
  );
}

function ForgetDialog({ image, onClose }: Omit<DialogProps, 'onTask'>) {
  const { t } = useTranslation('operations');
  const forget = useForgetImage();
  const reference = referenceOf(image);
  const aliases = (image.aliases ?? []).filter(Boolean);
  return (
    <Confirm
      isOpen
      title={t('images.forgetOf', { name: reference })}
      action={t('images.forget')}
      isBusy={forget.isPending}
      error={forget.error}
      {...(aliases.length > 0 ? { name: reference } : {})}
      onConfirm={() => forget.mutate({ reference, architecture: image.architecture ?? '' }, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('images.forgetMeans')}</Text>
      {aliases.length > 0 && <Text>{t('images.aliasesLost', { names: aliases.join(', ') })}</Text>}
    </Confirm>
  );
}

/** Fetches an image on agents, removes it from them, or forgets it: what applies to it. */
export function ImageActions({ image, onTask }: Props) {
  const { t } = useTranslation('operations');
  const [open, setOpen] = useState<'preload' | 'unload' | 'forget' | null>(null);
  const close = () => setOpen(null);
  const acts = [
    ...(image.registry ? (['preload'] as const) : []),
    ...(image.installed ? (['unload'] as const) : []),
    ...(image.registry ? (['forget'] as const) : []),
  ];
  if (acts.length === 0) return '–';
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <Button
            size="compact-sm"
            variant="default"
            aria-label={t('images.actionsOf', { name: referenceOf(image), architecture: image.architecture })}
          >
            {t('images.actions')}
          </Button>
        </Menu.Target>
        <Menu.Dropdown>
          {acts.map((act) => (
            <Menu.Item key={act} onClick={() => setOpen(act)}>
              {t(`images.${act}`)}
            </Menu.Item>
          ))}
        </Menu.Dropdown>
      </Menu>
      {(open === 'preload' || open === 'unload') && (
        <PlaceDialog act={open} image={image} onTask={onTask} onClose={close} />
      )}
      {open === 'forget' && <ForgetDialog image={image} onClose={close} />}
    </>
  );
}
