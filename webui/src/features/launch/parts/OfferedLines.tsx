import { Button, Group, ScrollArea, Stack, Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { dataOf, rest } from '../../../api/client';
import { Disclosed } from '../../../components/Disclosed';
import { Query } from '../../../components/Query';
import { type OfferedLine, offeredOptions, offeredVariants } from '../offered';

const shown = 200;

type Kind = 'variants' | 'plugins';

async function fetchOffered(kind: Kind, group: string, signal: AbortSignal): Promise<OfferedLine[]> {
  if (kind === 'plugins') {
    return offeredOptions((await dataOf(rest.GET('/resource/plugin-options', { signal }))).plugin_options);
  }
  const params = { query: group === '' ? {} : { scaling_group: group } };
  const reply = await dataOf(rest.GET('/resource/variant-properties', { params, signal }));
  return offeredVariants(reply.variant_properties);
}

interface Props {
  kind: Kind;
  /** The resource group whose devices are meant; empty for all that the caller may use. */
  group: string;
  onAdd: (line: string) => void;
}

/** Lists, once it is asked for, lines that the field of a kind takes; a click adds one. */
export default function OfferedLines(props: Props) {
  const { t } = useTranslation('launch');
  const [isOpen, setOpen] = useState(false);
  return (
    <Disclosed title={t(`offered.${props.kind}`)} isOpen={isOpen} onToggle={() => setOpen(!isOpen)}>
      <Lines {...props} />
    </Disclosed>
  );
}

function Lines({ kind, group, onAdd }: Props) {
  const { t } = useTranslation('launch');
  const query = useQuery({
    queryKey: ['offered', kind, group],
    queryFn: ({ signal }) => fetchOffered(kind, group, signal),
    staleTime: 60_000,
  });
  return (
    <Query query={query} rows={1}>
      {(lines) => {
        if (lines.length === 0) return <Text c="dimmed">{t('offered.none')}</Text>;
        return (
          <ScrollArea.Autosize
            mah={240}
            viewportProps={{ tabIndex: 0, role: 'group', 'aria-label': t(`offered.${kind}`) }}
          >
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
