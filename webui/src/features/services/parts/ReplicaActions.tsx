import { Button, Group, NumberInput, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { Confirm } from '../../../components/Confirm';
import { useEndReplica, useSetWeight } from '../queries';

export interface ReplicaOfRow {
  route_id: string;
  traffic_ratio: number;
}

interface Props {
  endpoint: string;
  replica: ReplicaOfRow;
}

const heaviest = 1000;

function WeightDialog({ endpoint, replica, onClose }: Props & { onClose: () => void }) {
  const { t } = useTranslation('services');
  const change = useSetWeight(endpoint);
  const [weight, setWeight] = useState<number | string>(replica.traffic_ratio); // of '0.' a number would be made '0'
  return (
    <Confirm
      isOpen
      title={t('weight.title', { id: replica.route_id.slice(0, 8) })}
      action={t('weight.action')}
      isDangerous={false}
      isBusy={change.isPending}
      error={change.error}
      onConfirm={() => {
        if (weight !== '') change.mutate({ replica: replica.route_id, weight: Number(weight) }, { onSuccess: onClose });
      }}
      onClose={onClose}
    >
      <NumberInput
        label={t('replica.weight')}
        description={t('weight.hint')}
        min={0}
        max={heaviest}
        value={weight}
        error={change.isError ? asProblem(change.error).fields.traffic_ratio : undefined}
        onChange={setWeight}
      />
    </Confirm>
  );
}

function EndDialog({ endpoint, replica, onClose }: Props & { onClose: () => void }) {
  const { t } = useTranslation('services');
  const end = useEndReplica(endpoint);
  return (
    <Confirm
      isOpen
      title={t('endReplica.title', { id: replica.route_id.slice(0, 8) })}
      action={t('endReplica.action')}
      isBusy={end.isPending}
      error={end.error}
      onConfirm={() => end.mutate(replica.route_id, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('endReplica.detail')}</Text>
    </Confirm>
  );
}

/** Gives a replica another weight, or ends it and lowers the wanted number. */
export function ReplicaActions(props: Props) {
  const { t } = useTranslation('services');
  const [dialog, setDialog] = useState<'weight' | 'end' | null>(null);
  const close = () => setDialog(null);
  const id = props.replica.route_id.slice(0, 8);
  return (
    <Group gap={4} wrap="nowrap">
      <Button
        size="compact-xs"
        variant="default"
        aria-label={t('weight.openOf', { id })}
        onClick={() => setDialog('weight')}
      >
        {t('weight.open')}
      </Button>
      <Button
        size="compact-xs"
        variant="default"
        aria-label={t('endReplica.openOf', { id })}
        onClick={() => setDialog('end')}
      >
        {t('endReplica.open')}
      </Button>
      {dialog === 'weight' && <WeightDialog {...props} onClose={close} />}
      {dialog === 'end' && <EndDialog {...props} onClose={close} />}
    </Group>
  );
}
