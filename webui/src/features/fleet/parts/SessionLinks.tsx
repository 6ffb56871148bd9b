import { Anchor, List, Text } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';

const maxNamed = 5;

/** The sessions that an act is about, so that nobody is surprised: the first ones by name. */
export function SessionLinks({ ids }: { ids: readonly string[] }) {
  const { t } = useTranslation('fleet');
  return (
    <>
      <List size="sm">
        {ids.slice(0, maxNamed).map((id) => (
          <List.Item key={id}>
            <Anchor component={Link} to="/sessions/$id" params={{ id } as never}>
              {id}
            </Anchor>
          </List.Item>
        ))}
      </List>
      {ids.length > maxNamed && (
        <Text size="sm" c="dimmed">
          {t('moreSessions', { count: ids.length - maxNamed })}
        </Text>
      )}
    </>
  );
}
