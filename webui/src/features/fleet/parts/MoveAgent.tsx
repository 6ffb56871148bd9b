import { Button, NativeSelect, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useGroupNames } from '../../../api/choices';
import { useRole } from '../../../api/me';
import { FormDialog } from '../../../components/FormDialog';
import { Query } from '../../../components/Query';
import { type AgentDetails, useMoveAgent } from '../queries';

function MoveDialog({ agent, onClose }: { agent: AgentDetails; onClose: () => void }) {
  const { t } = useTranslation('fleet');
  const names = useGroupNames();
  const move = useMoveAgent(agent.id ?? '');
  const [group, setGroup] = useState(agent.scaling_group ?? '');
  return (
    <FormDialog
      title={t('move.title', { id: agent.id })}
      action={t('move.action')}
      isBusy={move.isPending}
      error={move.error}
      onSubmit={() => {
        if (group === agent.scaling_group) onClose();
        else move.mutate(group, { onSuccess: onClose });
      }}
      onClose={onClose}
    >
      <Text>{t('move.means')}</Text>
      <Query query={names} rows={1}>
        {(groups) => (
          <NativeSelect
            label={t('column.group')}
            data={[...new Set([agent.scaling_group ?? '', ...groups])]}
            value={group}
            onChange={(event) => setGroup(event.currentTarget.value)}
          />
        )}
      </Query>
    </FormDialog>
  );
}

/** Moves an agent to another resource group. */
export function MoveAgent({ agent }: { agent: AgentDetails }) {
  const { t } = useTranslation('fleet');
  const [isOpen, setOpen] = useState(false);
  if (useRole() !== 'superadmin') return null;
  return (
    <>
      <Button variant="default" onClick={() => setOpen(true)}>
        {t('move.open')}
      </Button>
      {isOpen && <MoveDialog agent={agent} onClose={() => setOpen(false)} />}
    </>
  );
}
