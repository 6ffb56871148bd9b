import { Button, Group, SimpleGrid, Stack, Text, UnstyledButton } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Slots } from '../../../components/Slots';
import { StatusBadge } from '../../../components/StatusBadge';
import { formatBytes } from '../../../i18n/format';
import type { Draft } from '../draft';
import { useVerdicts } from '../queries';
import { bodyOf, changesOf, type Preset, sortByRoom, sortByVerdict, verdictTone } from '../rules';
import classes from './PresetCards.module.css';

const maxPresets = 9;

/** Named amounts with what devices must be, each with its verdict; those that start now come first, and all are there on demand. */
export function PresetCards({
  presets,
  draft,
  onTake,
}: {
  presets: readonly Preset[];
  draft: Draft;
  onTake: (changes: Partial<Draft>) => void;
}) {
  const { t, i18n } = useTranslation('launch');
  const [isAll, setAll] = useState(false);
  // A verdict takes a request of its own, so that the presets with enough free are asked about first.
  const shown = sortByRoom(presets).slice(0, isAll ? presets.length : maxPresets);
  const verdicts = useVerdicts(shown.map((preset) => bodyOf({ ...draft, ...changesOf(preset), name: '' })));
  const cards = sortByVerdict(
    shown.map((preset, place) => ({ ...preset, told: verdicts[place]?.data, verdict: verdicts[place]?.data?.verdict })),
  );
  return (
    <Stack gap="xs">
      <SimpleGrid cols={{ base: 1, xs: 2, md: 3 }} spacing="xs">
        {cards.map((card) => (
          <UnstyledButton
            key={card.name}
            className={classes.card}
            onClick={() => onTake(changesOf(card))}
            title={card.told?.message}
          >
            <Text fw={600}>{card.name}</Text>
            <Text size="sm">
              <Slots amounts={card.resource_slots} />
            </Text>
            {card.shared_memory !== null && (
              <Text size="xs">{t('presets.shmem', { size: formatBytes(card.shared_memory, i18n.language) })}</Text>
            )}
            {card.device_requests.map((request) => (
              <Text key={request} size="xs" ff="monospace" style={{ overflowWrap: 'anywhere' }}>
                {request}
              </Text>
            ))}
            {card.told && (
              <StatusBadge tone={verdictTone(card.told)} label={t(`verdict.${card.told.verdict}` as 'verdict.now')} />
            )}
          </UnstyledButton>
        ))}
      </SimpleGrid>
      {presets.length > maxPresets && (
        <Group gap="xs">
          <Text size="sm" c="dimmed">
            {t('presets.shown', { shown: shown.length, total: presets.length })}
          </Text>
          <Button size="compact-sm" variant="default" onClick={() => setAll(!isAll)}>
            {isAll ? t('presets.fewer') : t('presets.all')}
          </Button>
        </Group>
      )}
    </Stack>
  );
}
