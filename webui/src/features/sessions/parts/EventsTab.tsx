import { Code, Table, Text } from '@mantine/core';
import { useEffect, useState } from 'react';
import { useTranslation } from 'react-i18next';
import type { SessionEvent } from '../../../api/events';
import { live } from '../../../api/live';
import { Card } from '../../../components/Card';
import { RelativeTime } from '../../../components/RelativeTime';
import type { SessionDetails } from '../queries';

const maxEvents = 500;

/** The events of the session since this page was opened; what was before is in the timeline. */
export function EventsTab({ session }: { session: SessionDetails }) {
  const { t } = useTranslation('sessions');
  const [events, setEvents] = useState<(SessionEvent & { at: string })[]>([]);
  const id = session.id;
  useEffect(
    () =>
      live.subscribe((received) => {
        const at = new Date().toISOString();
        const own = received.filter((event) => event.sessionId === id).map((event) => ({ ...event, at }));
        if (own.length > 0) setEvents((before) => [...own.reverse(), ...before].slice(0, maxEvents));
      }),
    [id],
  );
  return (
    <Card title={t('tab.events')}>
      <Text size="sm" c="dimmed">
        {t('events.since')}
      </Text>
      {events.length > 0 && (
        <Table aria-live="polite">
          <Table.Tbody>
            {events.map((event) => (
              <Table.Tr key={event.id}>
                <Table.Td>
                  <RelativeTime at={event.at} />
                </Table.Td>
                <Table.Td>
                  <Code>{event.name}</Code>
                </Table.Td>
                <Table.Td>{event.reason}</Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      )}
    </Card>
  );
}
