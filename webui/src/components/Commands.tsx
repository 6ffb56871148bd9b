import { Code, Group, Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { commandOf, programOf, type SessionRequest } from '../api/forms/reproduce';
import { Copy } from './Copy';

/** The command and the program that start such a session. */
export function Commands({ request }: { request: SessionRequest }) {
  const { t } = useTranslation('components');
  const texts = [
    [t('commands.command'), commandOf(request), t('commands.copyCommand')],
    [t('commands.program'), programOf(request), t('commands.copyProgram')],
  ] as const;
  return (
    <Stack gap="xs">
      {texts.map(([name, text, label]) => (
        <div key={name}>
          <Group gap={4} justify="space-between">
            <Text size="sm" c="dimmed">
              {name}
            </Text>
            <Copy value={text} label={label} />
          </Group>
          <Code block tabIndex={0}>
            {text}
          </Code>
        </div>
      ))}
    </Stack>
  );
}
