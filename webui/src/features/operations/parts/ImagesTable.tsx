import { Button, CloseButton, Group, Pill, Stack, Text, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { formatSlot, useSlotDetails } from '../../../api/slots';
import { Confirm } from '../../../components/Confirm';
import { EmptyState } from '../../../components/EmptyState';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { formatBytes } from '../../../i18n/format';
import { limitText, referenceOf } from '../images';
import { type OperatorImage, useAliasImage, useDealiasImage } from '../queries';
import { ImageActions } from './ImageActions';

const maxShown = 200;

function Aliases({ image }: { image: OperatorImage }) {
  const { t } = useTranslation('operations');
  const add = useAliasImage();
  const remove = useDealiasImage();
  const [alias, setAlias] = useState('');
  const [doomed, setDoomed] = useState<string | null>(null);
  const reference = referenceOf(image);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    add.mutate(
      { alias: alias.trim(), target: reference, architecture: image.architecture ?? '' },
      { onSuccess: () => setAlias('') },
    );
  };
  return (
    <Stack gap={4}>
      <Group gap={4}>
        {(image.aliases ?? []).map((name) => (
          <Group key={name} gap={2} wrap="nowrap">
            <Pill>{name}</Pill>
            <CloseButton
              size="sm"
              aria-label={t('registries.aliasRemove', { name })}
              disabled={remove.isPending}
              onClick={() => {
                remove.reset();
                setDoomed(name ?? '');
              }}
            />
          </Group>
        ))}
      </Group>
      <form onSubmit={submit}>
        <Group gap={4} wrap="nowrap">
          <TextInput
            size="xs"
            aria-label={t('registries.aliasOf', { name: reference })}
            placeholder={t('registries.alias')}
            value={alias}
            maxLength={64}
            required
            onChange={(event) => setAlias(event.currentTarget.value)}
          />
          <Button
            type="submit"
            size="xs"
            variant="default"
            flex="none"
            loading={add.isPending}
            aria-label={t('registries.aliasAddOf', { name: reference })}
          >
            {t('add')}
          </Button>
        </Group>
      </form>
      {add.isError && <ProblemAlert error={add.error} />}
      {doomed !== null && (
        <Confirm
          isOpen
          title={t('registries.aliasConfirm', { name: doomed })}
          action={t('remove')}
          isBusy={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(doomed, { onSuccess: () => setDoomed(null) })}
          onClose={() => setDoomed(null)}
        >
          <Text>{t('registries.aliasLoses', { name: doomed, image: reference })}</Text>
        </Confirm>
      )}
    </Stack>
  );
}

/** The images that match, with where they are, what they need at least and at most, and their short names. */
export function ImagesTable({
  images,
  q,
  onTask,
}: {
  images: readonly OperatorImage[];
  q: string;
  onTask: (id: string) => void;
}) {
  const { t, i18n } = useTranslation('operations');
  const { data: details } = useSlotDetails();
  const amount = (slot: string, value: string) =>
    Number.isNaN(Number(value)) ? value : formatSlot(slot, value, details, i18n.language);
  const text = q.toLowerCase();
  const matching = images.filter((image) =>
    `${referenceOf(image)} ${image.architecture} ${(image.aliases ?? []).join(' ')}`.toLowerCase().includes(text),
  );
  if (matching.length === 0) return <EmptyState title={q ? t('nothingMatches') : t('registries.noImages')} />;
  return (
    <Stack gap="xs">
      <SimpleTable
        label={t('registries.images')}
        rows={matching.slice(0, maxShown)}
        idOf={(image) => `${referenceOf(image)} ${image.architecture}`}
        minWidth={1000}
        columns={[
          {
            label: t('column.image'),
            cell: (image) => (
              <Text size="sm" miw={150} style={{ overflowWrap: 'anywhere' }}>
                {referenceOf(image)}
              </Text>
            ),
          },
          { label: t('column.architecture'), cell: (image) => image.architecture },
          {
            label: t('column.size'),
            cell: (image) => (image.size_bytes ? formatBytes(image.size_bytes, i18n.language) : '–'),
          },
          { label: t('column.limits'), cell: (image) => limitText(image.resource_limits, amount) || '–' },
          {
            label: t('column.installed'),
            cell: (image) => (
              <StatusBadge
                tone={image.installed ? 'good' : 'idle'}
                label={t('registries.agents', { count: (image.installed_agents ?? []).length })}
              />
            ),
          },
          { label: t('registries.alias'), cell: (image) => <Aliases image={image} /> },
          { label: t('column.action'), cell: (image) => <ImageActions image={image} onTask={onTask} /> },
        ]}
      />
      {matching.length > maxShown && <Text c="dimmed">{t('more', { count: matching.length - maxShown })}</Text>}
    </Stack>
  );
}
