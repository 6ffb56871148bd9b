import { Button, Group, NativeSelect, Stack, TagsInput, Text, TextInput } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { type FormEvent, lazy, Suspense, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { useTask } from '../../../api/task';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { TaskNotice } from '../../../components/TaskNotice';
import {
  type NewRegistry,
  type Registry,
  useAddRegistry,
  useArtifactRegistries,
  useRemoveRegistry,
  useScan,
} from '../queries';

const RegistryDialog = lazy(() => import('./RegistryDialog'));

const types = ['huggingface', 'reservoir', 'local'] as const;

/** Adds a registry; the credentials of each type have names of their own. */
function NewRegistryForm() {
  const { t } = useTranslation('artifacts');
  const add = useAddRegistry();
  const [name, setName] = useState('');
  const [type, setType] = useState<NewRegistry['type']>('huggingface');
  const [url, setUrl] = useState('');
  const [accessKey, setAccessKey] = useState('');
  const [secret, setSecret] = useState('');
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const credentials: Record<string, string> =
      secret === '' ? {} : type === 'reservoir' ? { access_key: accessKey, secret_key: secret } : { token: secret };
    add.mutate(
      { name: name.trim(), type, url: url.trim(), credentials },
      {
        onSuccess: () => {
          setName('');
          setUrl('');
          setSecret('');
        },
      },
    );
  };
  const fields = add.isError ? asProblem(add.error).fields : {};
  return (
    <form onSubmit={submit}>
      <Stack gap="sm" maw={560}>
        <TextInput
          label={t('registries.name')}
          required
          withAsterisk={false}
          value={name}
          error={fields.name}
          onChange={(event) => setName(event.currentTarget.value)}
        />
        <NativeSelect
          label={t('registries.type')}
          data={types.map((value) => ({ value, label: t(`registries.types.${value}`) }))}
          value={type}
          onChange={(event) => setType(event.currentTarget.value as NewRegistry['type'])}
        />
        {type !== 'local' && (
          <TextInput
            label={t('registries.url')}
            type="url"
            placeholder="https://huggingface.co"
            required
            withAsterisk={false}
            value={url}
            error={fields.url}
            onChange={(event) => setUrl(event.currentTarget.value)}
          />
        )}
        {type === 'reservoir' && (
          <TextInput
            label={t('registries.accessKey')}
            autoComplete="off"
            value={accessKey}
            onChange={(event) => setAccessKey(event.currentTarget.value)}
          />
        )}
        {type !== 'local' && (
          <TextInput
            label={t(type === 'reservoir' ? 'registries.secretKey' : 'registries.token')}
            type="password"
            autoComplete="new-password"
            value={secret}
            error={fields.credentials}
            onChange={(event) => setSecret(event.currentTarget.value)}
          />
        )}
        {add.isError && <ProblemAlert error={add.error} />}
        <Group>
          <Button type="submit" variant="default" loading={add.isPending}>
            {t('registries.add')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

/** The registries of artifacts, which superadmins scan, add, change and remove. */
export function RegistriesCard({ mayChange }: { mayChange: boolean }) {
  const { t } = useTranslation('artifacts');
  const client = useQueryClient();
  const scan = useScan();
  const remove = useRemoveRegistry();
  const [names, setNames] = useState<string[]>([]);
  const [doomed, setDoomed] = useState<string | null>(null);
  const [changed, setChanged] = useState<Registry | null>(null);
  const task = useTask(scan.data ?? '', () => void client.invalidateQueries({ queryKey: ['artifacts'] }));
  const isScanning = scan.isPending || task?.state === 'running';
  return (
    <Card title={t('registries.title')}>
      <Stack>
        <Query query={useArtifactRegistries()}>
          {(registries) => (
            <SimpleTable
              label={t('registries.title')}
              rows={registries}
              idOf={(row) => row.id}
              minWidth={680}
              columns={[
                { label: t('registries.name'), cell: (row) => row.name },
                {
                  label: t('registries.type'),
                  cell: (row) => t(`registries.types.${row.type}` as 'registries.types.local', row.type),
                },
                { label: t('registries.url'), cell: (row) => row.url || '–' },
                { label: t('registries.viewers'), cell: (row) => row.viewers.join(', ') },
                ...(mayChange
                  ? [
                      {
                        label: t('column.action'),
                        cell: (row: (typeof registries)[number]) => (
                          <Group gap={4} wrap="nowrap">
                            {row.type !== 'local' && (
                              <Button
                                size="compact-xs"
                                variant="default"
                                disabled={isScanning}
                                aria-label={t('registries.scanOf', { name: row.name })}
                                onClick={() => scan.mutate({ registry: row.name, names })}
                              >
                                {t('registries.scan')}
                              </Button>
                            )}
                            <Button
                              size="compact-xs"
                              variant="default"
                              aria-label={t('registries.changeOf', { name: row.name })}
                              onClick={() => setChanged(row)}
                            >
                              {t('registries.change')}
                            </Button>
                            <Button
                              size="compact-xs"
                              variant="default"
                              aria-label={t('registries.removeOf', { name: row.name })}
                              onClick={() => setDoomed(row.name)}
                            >
                              {t('registries.remove')}
                            </Button>
                          </Group>
                        ),
                      },
                    ]
                  : []),
              ]}
            />
          )}
        </Query>
        {mayChange && (
          <>
            <TagsInput
              label={t('registries.names')}
              description={t('registries.namesHint')}
              placeholder="acme/tiny"
              maw={560}
              value={names}
              onChange={setNames}
            />
            {scan.isError && <ProblemAlert error={scan.error} />}
            <TaskNotice
              task={task}
              titles={{
                running: t('registries.scanning'),
                done: t('registries.scanned'),
                failed: t('registries.scanFailed'),
              }}
            />
            <NewRegistryForm />
          </>
        )}
      </Stack>
      {changed !== null && (
        <Suspense>
          <RegistryDialog registry={changed} onClose={() => setChanged(null)} />
        </Suspense>
      )}
      <Confirm
        isOpen={doomed !== null}
        title={t('registries.confirm', { name: doomed ?? '' })}
        action={t('registries.remove')}
        isBusy={remove.isPending}
        error={remove.error}
        onConfirm={() => remove.mutate(doomed ?? '', { onSuccess: () => setDoomed(null) })}
        onClose={() => {
          remove.reset();
          setDoomed(null);
        }}
      >
        <Text>{t('registries.means')}</Text>
      </Confirm>
    </Card>
  );
}
