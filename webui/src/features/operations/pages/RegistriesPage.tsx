import { Button, Group, NativeSelect, Stack, TagsInput, Text, TextInput } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useTask } from '../../../api/task';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { TaskNotice } from '../../../components/TaskNotice';
import { ImagesCard, LocalImagesCard } from '../parts/ImagesCard';
import {
  useClearImages,
  useCreateRegistry,
  useDeleteRegistry,
  useOperatorImages,
  useRegistries,
  useRescan,
} from '../queries';

/** Adds a registry; it has to be scanned before its images are there. */
function NewRegistry() {
  const { t } = useTranslation('operations');
  const create = useCreateRegistry();
  const [hostname, setHostname] = useState('');
  const [url, setUrl] = useState('');
  const [type, setType] = useState('docker');
  const [projects, setProjects] = useState<string[]>([]);
  const [username, setUsername] = useState('');
  const [password, setPassword] = useState('');
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate(
      {
        hostname: hostname.trim(),
        url: url.trim(),
        type,
        project: projects,
        username: username || null,
        password: password || null,
      },
      {
        onSuccess: () => {
          setHostname('');
          setUrl('');
          setPassword('');
        },
      },
    );
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="sm" maw={560}>
        <TextInput
          label={t('registries.hostname')}
          placeholder="registry.example.com"
          required
          withAsterisk={false}
          value={hostname}
          onChange={(event) => setHostname(event.currentTarget.value)}
        />
        <TextInput
          label={t('registries.url')}
          placeholder="https://registry.example.com"
          type="url"
          required
          withAsterisk={false}
          value={url}
          onChange={(event) => setUrl(event.currentTarget.value)}
        />
        <NativeSelect
          label={t('registries.type')}
          data={['docker', 'harbor2']}
          value={type}
          onChange={(event) => setType(event.currentTarget.value)}
        />
        <TagsInput
          label={t('registries.projects')}
          description={t('registries.projectsHint')}
          value={projects}
          onChange={setProjects}
        />
        <TextInput
          label={t('registries.username')}
          autoComplete="off"
          value={username}
          onChange={(event) => setUsername(event.currentTarget.value)}
        />
        <TextInput
          label={t('registries.password')}
          type="password"
          autoComplete="new-password"
          value={password}
          onChange={(event) => setPassword(event.currentTarget.value)}
        />
        {create.isError && <ProblemAlert error={create.error} />}
        <Group>
          <Button type="submit" variant="default" loading={create.isPending}>
            {t('registries.add')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

/** Forgets all images of a registry. Their short names do not come back with the next scan, so it asks for the name. */
function ClearDialog({ registry, onClose }: { registry: string; onClose: () => void }) {
  const { t } = useTranslation('operations');
  const clear = useClearImages();
  const images = useOperatorImages().data?.filter((image) => image.registry === registry) ?? [];
  const aliases = images.flatMap((image) => image.aliases ?? []);
  return (
    <Confirm
      isOpen
      title={t('registries.clearTitle', { name: registry })}
      action={t('registries.clear')}
      name={registry}
      isBusy={clear.isPending}
      error={clear.error}
      onConfirm={() => clear.mutate(registry, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t('registries.clearMeans', { count: images.length })}</Text>
      {aliases.length > 0 && <Text>{t('images.aliasesLost', { names: aliases.join(', ') })}</Text>}
    </Confirm>
  );
}

function Registries() {
  const { t } = useTranslation('operations');
  const query = useRegistries();
  const rescan = useRescan();
  const remove = useDeleteRegistry();
  const client = useQueryClient();
  const [doomed, setDoomed] = useState<string | null>(null);
  const [cleared, setCleared] = useState<string | null>(null);
  const task = useTask(rescan.data ?? '', () => void client.invalidateQueries({ queryKey: ['images'] }));
  const isScanning = rescan.isPending || task?.state === 'running';
  return (
    <Stack>
      <Query query={query}>
        {(registries) =>
          registries.length === 0 ? (
            <Text c="dimmed">{t('registries.none')}</Text>
          ) : (
            <SimpleTable
              label={t('registries.title')}
              rows={registries}
              idOf={(row) => row.hostname ?? ''}
              minWidth={680}
              columns={[
                { label: t('registries.hostname'), cell: (row) => row.hostname },
                { label: t('registries.url'), cell: (row) => row.config?.url },
                { label: t('registries.type'), cell: (row) => row.config?.type },
                { label: t('registries.projects'), cell: (row) => (row.config?.project ?? []).join(', ') || '–' },
                {
                  label: t('column.action'),
                  cell: (row) => (
                    <Group gap={4} wrap="nowrap">
                      <Button
                        size="compact-xs"
                        variant="default"
                        disabled={isScanning}
                        aria-label={t('registries.scanOf', { name: row.hostname })}
                        onClick={() => rescan.mutate(row.hostname ?? null)}
                      >
                        {t('registries.scan')}
                      </Button>
                      <Button
                        size="compact-xs"
                        variant="default"
                        aria-label={t('registries.clearOf', { name: row.hostname })}
                        onClick={() => setCleared(row.hostname ?? null)}
                      >
                        {t('registries.clear')}
                      </Button>
                      <Button
                        size="compact-xs"
                        variant="default"
                        aria-label={t('registries.removeOf', { name: row.hostname })}
                        onClick={() => {
                          remove.reset();
                          setDoomed(row.hostname ?? null);
                        }}
                      >
                        {t('remove')}
                      </Button>
                    </Group>
                  ),
                },
              ]}
            />
          )
        }
      </Query>
      <Group>
        <Button variant="default" loading={isScanning} onClick={() => rescan.mutate(null)}>
          {t('registries.scanAll')}
        </Button>
      </Group>
      {rescan.isError && <ProblemAlert error={rescan.error} />}
      <TaskNotice
        task={task}
        titles={{
          running: t('registries.task.running'),
          done: t('registries.task.done'),
          failed: t('registries.task.failed'),
        }}
      />
      <Confirm
        isOpen={doomed !== null}
        title={t('registries.confirm', { name: doomed ?? '' })}
        action={t('remove')}
        isBusy={remove.isPending}
        error={remove.error}
        onConfirm={() => remove.mutate(doomed ?? '', { onSuccess: () => setDoomed(null) })}
        onClose={() => setDoomed(null)}
      >
        <Text>{t('registries.means')}</Text>
      </Confirm>
      {cleared !== null && <ClearDialog registry={cleared} onClose={() => setCleared(null)} />}
    </Stack>
  );
}

/** Registries of images, and the images with their short names, limits, and the agents that have them. */
export function RegistriesPage() {
  const { t } = useTranslation('operations');
  return (
    <Page title={t('registries.title')}>
      <Stack>
        <Card title={t('registries.configured')}>
          <Registries />
        </Card>
        <Card title={t('registries.new')}>
          <NewRegistry />
        </Card>
        <ImagesCard />
        <LocalImagesCard />
      </Stack>
    </Page>
  );
}
export default gated(['superadmin'], RegistriesPage);
