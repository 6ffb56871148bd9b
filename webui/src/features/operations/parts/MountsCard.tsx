import { Code, Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Query } from '../../../components/Query';
import { useMounts } from '../mounts';

/** The file systems under the volumes of each storage proxy. */
export function MountsCard() {
  const { t } = useTranslation('operations');
  return (
    <Card title={t('storage.mounts')}>
      <Query query={useMounts()} rows={2}>
        {(proxies) => (
          <Stack gap="sm">
            {proxies.map(([proxy, mounts]) => (
              <div key={proxy}>
                <Text size="sm" fw={500}>
                  {proxy}
                </Text>
                <Code block tabIndex={0} role="group" aria-label={t('storage.mountsOf', { proxy })}>
                  {mounts.join('\n') || '–'}
                </Code>
              </div>
            ))}
          </Stack>
        )}
      </Query>
    </Card>
  );
}
