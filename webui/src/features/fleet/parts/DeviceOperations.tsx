import { Button, Menu, NativeSelect, Stack, Text } from '@mantine/core';
import { lazy, Suspense, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Notice } from '../../../components/Notice';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { type Action, type OperableDevice, operableDevices, partitionsOf, pluginsOf } from '../devices';
import { type AgentDetails, useDeviceOptions } from '../queries';

// With fields that the page has no other use for.
const OperateDialog = lazy(() => import('./OperateDialog'));

function ActionMenu({ device, onChoose }: { device: OperableDevice; onChoose: (action: Action) => void }) {
  const { t } = useTranslation('fleet');
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <Button size="compact-sm" variant="default" aria-label={t('operate.openOf', { id: device.id })}>
          {t('operate.open')}
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        {device.actions.map((action) => (
          <Menu.Item key={action} onClick={() => onChoose(action)}>
            {t(`operate.action.${action}`)}
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  );
}

/** What can be done with the devices of an agent, by plugin, and doing it. */
export function DeviceOperations({ agent }: { agent: AgentDetails }) {
  const { t } = useTranslation('fleet');
  const plugins = pluginsOf(agent);
  const [chosen, setChosen] = useState('');
  const plugin = plugins.includes(chosen) ? chosen : (plugins[0] ?? '');
  const query = useDeviceOptions(agent.id ?? '', plugin, agent.devices ?? '');
  const [act, setAct] = useState<{ device: OperableDevice; action: Action } | null>(null);
  const [done, setDone] = useState('');
  if (plugins.length === 0) return null;
  return (
    <Card title={t('operate.card')}>
      <Stack gap="sm">
        <NativeSelect
          label={t('operate.plugin')}
          w="fit-content"
          data={plugins}
          value={plugin}
          onChange={(event) => {
            setChosen(event.currentTarget.value);
            setDone('');
          }}
        />
        {done !== '' && <Notice tone="good" role="status" title={done} />}
        <Query query={query} rows={2}>
          {(options) => {
            const devices = operableDevices(options, partitionsOf(agent, plugin));
            if (devices.length === 0) return <Text c="dimmed">{t('operate.none')}</Text>;
            return (
              <SimpleTable
                label={t('operate.card')}
                rows={devices}
                idOf={(device) => device.id}
                minWidth={640}
                columns={[
                  { label: t('device.id'), cell: (device) => device.id },
                  {
                    label: t('operate.profiles'),
                    cell: (device) =>
                      device.profiles
                        .map(({ name, available }) => t('operate.profileOf', { name, count: available }))
                        .join(', ') || '–',
                  },
                  { label: t('operate.image'), cell: (device) => device.image || '–' },
                  {
                    label: t('operate.withheld'),
                    cell: (device) => (device.isAttached ? device.cordon || '–' : t('operate.detached')),
                  },
                  {
                    label: t('operate.diagnosed'),
                    cell: (device) => options.diagnosed?.[device.id]?.join(', ') || '–',
                  },
                  {
                    label: t('operate.open'),
                    cell: (device) => <ActionMenu device={device} onChoose={(action) => setAct({ device, action })} />,
                  },
                ]}
              />
            );
          }}
        </Query>
      </Stack>
      {act !== null && (
        <Suspense>
          <OperateDialog
            agent={agent}
            plugin={plugin}
            {...act}
            onDone={(made) => {
              const action = t(`operate.action.${act.action}`);
              setDone(
                made === act.device.id
                  ? t('operate.done', { action, id: made })
                  : t('operate.made', { made, id: act.device.id }),
              );
              setAct(null);
            }}
            onClose={() => setAct(null)}
          />
        </Suspense>
      )}
    </Card>
  );
}
