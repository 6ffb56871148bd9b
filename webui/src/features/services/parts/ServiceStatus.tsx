import { Group, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { StatusBadge } from '../../../components/StatusBadge';
import { toneOf } from '../rules';

/** Returns the words for a reason of the manager; one that is not known is its own word. */
export function useReason(): (reason: string | null | undefined) => string {
  const { t, i18n } = useTranslation('services');
  return (reason) => {
    const key = `reason.${reason ?? ''}`;
    return i18n.exists(key, { ns: 'services' }) ? t(key as 'reason.created') : (reason ?? '');
  };
}

/** Shows the status of a service, a replica or a revision by the word of the manager, with its reason. */
export function ServiceStatus({ status, reason }: { status: string | null | undefined; reason?: string | null }) {
  const textOf = useReason();
  return (
    <Group gap="xs" component="span">
      <StatusBadge tone={toneOf(status)} label={status ?? '–'} />
      {reason && (
        <Text size="sm" c="dimmed" component="span">
          {textOf(reason)}
        </Text>
      )}
    </Group>
  );
}
