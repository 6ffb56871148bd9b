import { Button, Group, ScrollArea, Stack, Text } from '@mantine/core';
import { type UseQueryOptions, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Disclosed } from '../../../components/Disclosed';
import { Query } from '../../../components/Query';
import type { OfferedLine } from '../offered';

const shown = 200;

/** Lists, once it is asked for, lines that a field takes; a click adds one. */
export function OfferedLines<K extends readonly unknown[]>(props: {
  title: string;
  offered: UseQueryOptions<OfferedLine[], Error, OfferedLine[], K>;
  onAdd: (line: string) => void;
}) {
  const [isOpen, setOpen] = useState(false);
  return (
    <Disclosed title={props.title} isOpen={isOpen} onToggle={() => setOpen(!isOpen)}>
      <Lines {...props} />
    </Disclosed>
  );
}

function Lines<K extends readonly unknown[]>({ title, offered, onAdd }: Parameters<typeof OfferedLines<K>>[0]) {
  const { t } = useTranslation('launch');
  const query = useQuery(offered);
  return (
    <Query query={query} rows={1}>
      {(lines) => {
        if (lines.length === 0) return <Text c="dimmed">{t('offered.none')}</Text>;
        return (
          <ScrollArea.Autosize mah={240} viewportProps={{ tabIndex: 0, role: 'group', 'aria-label': title }}>
            <Stack gap={4}>
              {lines.slice(0, shown).map(({ line, about }) => (
                <Group key={line} gap="xs" wrap="nowrap" align="baseline">
                  <Button size="compact-sm" variant="default" onClick={() => onAdd(line)}>
                    {line}
                  </Button>
                  <Text size="sm" c="dimmed">
                    {about}
                  </Text>
                </Group>
              ))}
              {lines.length > shown && <Text c="dimmed">{t('offered.more', { count: lines.length - shown })}</Text>}
            </Stack>
          </ScrollArea.Autosize>
        );
      }}
    </Query>
  );
}
