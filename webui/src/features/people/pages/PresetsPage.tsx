import { Button, Code, Group, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { slotsOfLines } from '../../../api/amounts';
import { slotsOf } from '../../../api/filters';
import { useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { EmptyState } from '../../../components/EmptyState';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { Slots } from '../../../components/Slots';
import { formatBytes } from '../../../i18n/format';
import { useCreatePreset, useDeletePreset, usePresets } from '../queries';

function NewPreset() {
  const { t } = useTranslation('operations');
  const create = useCreatePreset();
  const [name, setName] = useState('');
  const [lines, setLines] = useState('');
  const [sharedMemory, setSharedMemory] = useState('');
  const slots = lines.trim() === '' ? null : slotsOfLines(lines);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (slots === null) return;
    create.mutate(
      { name: name.trim(), slots, sharedMemory: sharedMemory.trim() || null },
      {
        onSuccess: () => {
          setName('');
          setLines('');
          setSharedMemory('');
        },
      },
    );
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="sm" maw={560}>
        <TextInput
          label={t('presets.name')}
          required
          withAsterisk={false}
          maxLength={256}
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
        />
        <Textarea
          label={t('presets.slots')}
          description={t('presets.slotsHint')}
          placeholder={'cpu=2\nmem=4g'}
          autosize
          minRows={2}
          required
          withAsterisk={false}
          value={lines}
          error={lines !== '' && slots === null ? t('presets.noSlots') : undefined}
          onChange={(event) => setLines(event.currentTarget.value)}
        />
        <TextInput
          label={t('presets.sharedMemory')}
          placeholder="64m"
          value={sharedMemory}
          onChange={(event) => setSharedMemory(event.currentTarget.value)}
        />
        {create.isError && <ProblemAlert error={create.error} />}
        <Group>
          <Button type="submit" variant="default" disabled={slots === null} loading={create.isPending}>
            {t('presets.add')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

/** Amounts of resources that people choose by name when they launch. */
export function PresetsPage() {
  const { t, i18n } = useTranslation('operations');
  const query = usePresets();
  const remove = useDeletePreset();
  const mayChange = useRole() === 'superadmin';
  const [doomed, setDoomed] = useState<string | null>(null);
  return (
    <Page title={t('presets.title')} actions={<AnchorLink to="/policies">{t('presets.policies')}</AnchorLink>}>
      <Stack>
        <Query query={query}>
          {(presets) =>
            presets.length === 0 ? (
              <EmptyState title={t('presets.none')} />
            ) : (
              <SimpleTable
                label={t('presets.title')}
                rows={presets}
                idOf={(preset) => preset.name ?? ''}
                columns={[
                  { label: t('presets.name'), cell: (preset) => preset.name },
                  { label: t('presets.slots'), cell: (preset) => <Slots amounts={slotsOf(preset.resource_slots)} /> },
                  {
                    label: t('presets.sharedMemory'),
                    cell: (preset) => (preset.shared_memory ? formatBytes(preset.shared_memory, i18n.language) : '–'),
                  },
                  {
                    label: t('presets.devices'),
                    cell: (preset) =>
                      (preset.device_requests ?? []).map((request) => <Code key={request}>{request}</Code>),
                  },
                  ...(mayChange
                    ? [
                        {
                          label: t('column.action'),
                          cell: (preset: (typeof presets)[number]) => (
                            <Button
                              size="compact-xs"
                              variant="default"
                              aria-label={t('presets.removeOf', { name: preset.name })}
                              onClick={() => setDoomed(preset.name ?? null)}
                            >
                              {t('remove')}
                            </Button>
                          ),
                        },
                      ]
                    : []),
                ]}
              />
            )
          }
        </Query>
        {mayChange && (
          <Card title={t('presets.new')}>
            <NewPreset />
          </Card>
        )}
      </Stack>
      <Confirm
        isOpen={doomed !== null}
        title={t('presets.confirm', { name: doomed ?? '' })}
        action={t('remove')}
        isBusy={remove.isPending}
        error={remove.error}
        onConfirm={() => remove.mutate(doomed ?? '', { onSuccess: () => setDoomed(null) })}
        onClose={() => setDoomed(null)}
      >
        <Text>{t('presets.means')}</Text>
      </Confirm>
    </Page>
  );
}
export default gated(['admin', 'superadmin', 'monitor'], PresetsPage);
