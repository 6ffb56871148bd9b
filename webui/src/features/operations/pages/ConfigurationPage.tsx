import { Breadcrumbs, Button, Code, Group, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { Confirm } from '../../../components/Confirm';
import { EmptyState } from '../../../components/EmptyState';
import { FormDialog } from '../../../components/FormDialog';
import { gated } from '../../../components/gated';
import { Notice } from '../../../components/Notice';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { useConfiguration, useDeleteConfiguration, useSetConfiguration } from '../configuration';
import { type ConfigEntry, entriesOf, isSecret, pathOf } from '../keys';
import { SystemTabs } from '../parts/SystemTabs';

/** Sets a key; a new one is named below the prefix that is shown. */
function SetDialog({ prefix, entry, onClose }: { prefix: string; entry: ConfigEntry | null; onClose: () => void }) {
  const { t } = useTranslation('operations');
  const save = useSetConfiguration();
  const [key, setKey] = useState(entry?.key ?? (prefix === '' ? '' : `${prefix}/`));
  const [value, setValue] = useState(entry?.value ?? '');
  const [isMissing, setMissing] = useState(false);
  const cleanKey = key.trim().replace(/^\/+|\/+$/g, '');
  return (
    <FormDialog
      title={entry === null ? t('configuration.new') : t('configuration.changeOf', { key: entry.key })}
      action={t('configuration.save')}
      isBusy={save.isPending}
      error={save.error}
      onSubmit={() => {
        setMissing(cleanKey === '' || key.trim().endsWith('/'));
        if (cleanKey !== '' && !key.trim().endsWith('/')) save.mutate({ key: cleanKey, value }, { onSuccess: onClose });
      }}
      onClose={onClose}
    >
      {entry === null && (
        <TextInput
          label={t('configuration.key')}
          description={t('configuration.keyHint')}
          ff="monospace"
          maxLength={1024}
          value={key}
          error={isMissing ? t('configuration.keyMissing') : undefined}
          onChange={(event) => setKey(event.currentTarget.value)}
        />
      )}
      <Textarea
        label={t('column.value')}
        description={t('configuration.valueHint')}
        ff="monospace"
        autosize
        minRows={2}
        maxRows={12}
        value={value}
        onChange={(event) => setValue(event.currentTarget.value)}
      />
    </FormDialog>
  );
}

/** Removes a key, with all below it where there are some. Nothing keeps what was there, so it asks for the key. */
function RemoveDialog({ entry, onClose }: { entry: ConfigEntry; onClose: () => void }) {
  const { t } = useTranslation('operations');
  const remove = useDeleteConfiguration();
  const count = entry.below + (entry.value === null ? 0 : 1);
  return (
    <Confirm
      isOpen
      title={t('configuration.removeTitle', { key: entry.key })}
      action={t('remove')}
      name={entry.key}
      isBusy={remove.isPending}
      error={remove.error}
      onConfirm={() => remove.mutate({ key: entry.key, prefix: entry.below > 0 }, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('configuration.removeMeans', { count })}</Text>
    </Confirm>
  );
}

function Value({ entry }: { entry: ConfigEntry }) {
  const { t } = useTranslation('operations');
  const [isShown, setShown] = useState(false);
  if (entry.value === null) return '–';
  if (isSecret(entry.key) && !isShown) {
    return (
      <Button
        size="compact-xs"
        variant="default"
        aria-label={t('configuration.showOf', { key: entry.key })}
        onClick={() => setShown(true)}
      >
        {t('configuration.show')}
      </Button>
    );
  }
  return (
    <Text size="sm" ff="monospace" miw={140} style={{ overflowWrap: 'anywhere', whiteSpace: 'pre-wrap' }}>
      {entry.value === '' ? t('configuration.empty') : entry.value}
    </Text>
  );
}

/** The shared configuration by its keys: of daemons, their plugins, and registries. */
export function ConfigurationPage() {
  const { t } = useTranslation('operations');
  const { at = '' } = useSearch({ from: '/shell/system/configuration' });
  const query = useConfiguration(at);
  const [edited, setEdited] = useState<ConfigEntry | 'new' | null>(null);
  const [removed, setRemoved] = useState<ConfigEntry | null>(null);
  const path = pathOf(at);
  return (
    <Page
      title={t('configuration.title')}
      actions={
        <Button variant="default" onClick={() => setEdited('new')}>
          {t('configuration.new')}
        </Button>
      }
    >
      <SystemTabs here="configuration" />
      <Text c="dimmed" size="sm">
        {t('configuration.means')}
      </Text>
      <nav aria-label={t('configuration.path')}>
        <Breadcrumbs style={{ flexWrap: 'wrap', rowGap: 4 }}>
          <AnchorLink to="/system/configuration" search={{}}>
            {t('configuration.root')}
          </AnchorLink>
          {path.map(({ name, key }) => (
            <AnchorLink key={key} to="/system/configuration" search={{ at: key }}>
              {name}
            </AnchorLink>
          ))}
        </Breadcrumbs>
      </nav>
      <Query query={query}>
        {(tree) => {
          const entries = entriesOf(at, tree);
          if (entries.length === 0)
            return <EmptyState title={t('configuration.none')}>{t('configuration.noneHint')}</EmptyState>;
          return (
            <Stack>
              {at === '' && <Notice tone="wait" role="status" title={t('configuration.careful')} />}
              <SimpleTable
                label={t('configuration.title')}
                rows={entries}
                idOf={(entry) => entry.key}
                minWidth={620}
                columns={[
                  {
                    label: t('configuration.key'),
                    cell: (entry) =>
                      entry.below > 0 ? (
                        <AnchorLink to="/system/configuration" search={{ at: entry.key }}>
                          {entry.name}/
                        </AnchorLink>
                      ) : (
                        <Code>{entry.name || t('configuration.itself')}</Code>
                      ),
                  },
                  { label: t('column.value'), cell: (entry) => <Value entry={entry} /> },
                  { label: t('configuration.below'), cell: (entry) => entry.below || '–' },
                  {
                    label: t('column.action'),
                    cell: (entry) => (
                      <Group gap={4} wrap="nowrap">
                        <Button
                          size="compact-xs"
                          variant="default"
                          aria-label={t('configuration.changeOf', { key: entry.key })}
                          onClick={() => setEdited(entry)}
                        >
                          {t('configuration.change')}
                        </Button>
                        <Button
                          size="compact-xs"
                          variant="default"
                          aria-label={t('configuration.removeOf', { key: entry.key })}
                          onClick={() => setRemoved(entry)}
                        >
                          {t('remove')}
                        </Button>
                      </Group>
                    ),
                  },
                ]}
              />
            </Stack>
          );
        }}
      </Query>
      {edited !== null && (
        <SetDialog prefix={at} entry={edited === 'new' ? null : edited} onClose={() => setEdited(null)} />
      )}
      {removed !== null && <RemoveDialog entry={removed} onClose={() => setRemoved(null)} />}
    </Page>
  );
}
export default gated(['superadmin'], ConfigurationPage);
