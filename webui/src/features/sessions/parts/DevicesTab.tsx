import { Code, Stack, Table } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { EmptyState } from '../../../components/EmptyState';
import type { SessionDetails } from '../queries';
import { devicesOf } from '../rules';

/** The devices that each kernel holds. */
export function DevicesTab({ session }: { session: SessionDetails }) {
  const { t } = useTranslation('sessions');
  const holders = (session.containers ?? [])
    .filter((item) => item !== null)
    .map((item) => ({
      id: item.id ?? '',
      name: item.cluster_hostname ?? '',
      devices: devicesOf(item.attached_devices),
    }))
    .filter((item) => item.devices.length > 0);
  if (holders.length === 0) return <EmptyState title={t('devices.none')} />;
  return (
    <Stack>
      {holders.map((holder) => (
        <Card key={holder.id} title={holder.name}>
          <Table.ScrollContainer minWidth={520} scrollAreaProps={{ viewportProps: { tabIndex: 0 } }}>
            <Table>
              <Table.Thead>
                <Table.Tr>
                  <Table.Th>{t('devices.plugin')}</Table.Th>
                  <Table.Th>{t('devices.model')}</Table.Th>
                  <Table.Th>{t('devices.id')}</Table.Th>
                  <Table.Th>{t('devices.share')}</Table.Th>
                </Table.Tr>
              </Table.Thead>
              <Table.Tbody>
                {holder.devices.map((device) => (
                  <Table.Tr key={`${device.plugin}-${device.id}`}>
                    <Table.Td>{device.plugin}</Table.Td>
                    <Table.Td>{device.model}</Table.Td>
                    <Table.Td>
                      <Code>{device.id}</Code>
                    </Table.Td>
                    <Table.Td>
                      <Code>{device.data}</Code>
                    </Table.Td>
                  </Table.Tr>
                ))}
              </Table.Tbody>
            </Table>
          </Table.ScrollContainer>
        </Card>
      ))}
    </Stack>
  );
}
