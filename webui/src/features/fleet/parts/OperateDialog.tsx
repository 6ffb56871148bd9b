import { Checkbox, NativeSelect, NumberInput, Text, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { FormDialog } from '../../../components/FormDialog';
import {
  type Action,
  argumentOf,
  type OperableDevice,
  type OperationDraft,
  operationOf,
  sessionsHolding,
  withholds,
} from '../devices';
import { type AgentDetails, useOperateDevice } from '../queries';
import { SessionLinks } from './SessionLinks';

interface FieldsProps {
  action: Action;
  device: OperableDevice;
  draft: OperationDraft;
  change: (part: Partial<OperationDraft>) => void;
}

/** What an operation says besides the device. */
function OperationFields({ action, device, draft, change }: FieldsProps) {
  const { t } = useTranslation('fleet');
  const argument = argumentOf(action);
  return (
    <>
      {argument === 'profile' && (
        <NativeSelect
          label={t('operate.profile')}
          data={device.profiles.map(({ name, available }) => ({
            value: name,
            label: t('operate.profileOf', { name, count: available }),
            disabled: available < 1,
          }))}
          value={draft.profile}
          onChange={(event) => change({ profile: event.currentTarget.value })}
        />
      )}
      {argument === 'image' && (
        <TextInput
          label={t('operate.image')}
          description={t('operate.imageHint')}
          value={draft.image}
          onChange={(event) => change({ image: event.currentTarget.value })}
        />
      )}
      {argument === 'taint' && (
        <TextInput
          label={t('operate.key')}
          description={t('operate.keyHint')}
          value={draft.key}
          onChange={(event) => change({ key: event.currentTarget.value })}
        />
      )}
      {withholds(action) && (
        <>
          <TextInput
            label={t('operate.reason')}
            description={t('operate.reasonHint')}
            value={draft.reason}
            maxLength={1000}
            onChange={(event) => change({ reason: event.currentTarget.value })}
          />
          <NumberInput
            label={t('operate.hours')}
            description={t('operate.hoursHint')}
            min={0}
            max={87_600}
            value={draft.hours}
            onChange={(hours) => change({ hours })}
          />
        </>
      )}
      {action === 'drain' && (
        <Checkbox
          label={t('operate.startsOver')}
          checked={draft.startsOver}
          onChange={(event) => change({ startsOver: event.currentTarget.checked })}
        />
      )}
    </>
  );
}

/** Asks what an operation on a device needs, and says what it does; a drain ends sessions, so it asks for the device. */
export function OperateDialog({
  agent,
  plugin,
  device,
  action,
  onDone,
  onClose,
}: {
  agent: AgentDetails;
  plugin: string;
  device: OperableDevice;
  action: Action;
  onDone: (made: string) => void;
  onClose: () => void;
}) {
  const { t } = useTranslation('fleet');
  const operate = useOperateDevice(agent.id ?? '', plugin);
  const [draft, setDraft] = useState<OperationDraft>({
    profile: device.profiles.find(({ available }) => available > 0)?.name ?? '',
    image: device.image,
    key: '',
    reason: '',
    hours: '',
    startsOver: false,
  });
  const [isMissing, setMissing] = useState(false);
  const sessions = action === 'drain' ? sessionsHolding(agent, plugin, device.id) : [];
  const submit = () => {
    const body = operationOf(action, device.id, draft);
    setMissing(body === null);
    if (body !== null) operate.mutate(body, { onSuccess: onDone });
  };
  return (
    <FormDialog
      title={t('operate.title', { action: t(`operate.action.${action}`), id: device.id })}
      action={t(`operate.action.${action}`)}
      isBusy={operate.isPending}
      error={operate.error}
      name={action === 'drain' ? device.id : undefined}
      isDangerous={action === 'drain'}
      onSubmit={submit}
      onClose={onClose}
    >
      <Text>{t(`operate.means.${action}`)}</Text>
      {action === 'drain' && (
        <>
          <Text>{t('operate.ends', { count: sessions.length })}</Text>
          <SessionLinks ids={sessions} />
        </>
      )}
      <OperationFields
        action={action}
        device={device}
        draft={draft}
        change={(part) => setDraft((last) => ({ ...last, ...part }))}
      />
      {isMissing && (
        <Text role="alert" c="red.9">
          {t(`operate.missing.${argumentOf(action)}`)}
        </Text>
      )}
    </FormDialog>
  );
}
export default OperateDialog;
