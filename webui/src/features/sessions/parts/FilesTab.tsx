import { ActionIcon, Anchor, Breadcrumbs, Button, FileButton, Group, Stack, Text } from '@mantine/core';
import { IconDownload, IconFile, IconFolder, IconUpload } from '@tabler/icons-react';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { type DragEvent, useRef, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { saveBlob } from '../../../api/save';
import { EmptyState } from '../../../components/EmptyState';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { formatBytes } from '../../../i18n/format';
import type { SessionDetails } from '../queries';
import { isRunning } from '../rules';
import { fetchFile, useSessionFiles, useUploadFiles } from '../work';

function Files({ id }: { id: string }) {
  const { t, i18n } = useTranslation('sessionWork');
  const navigate = useNavigate();
  const { path = '' } = useSearch({ strict: false }) as { path?: string };
  const files = useSessionFiles(id, path);
  const upload = useUploadFiles(id);
  const [problem, setProblem] = useState<unknown>(null);
  const reset = useRef<() => void>(null);
  const parts = path.split('/').filter(Boolean);
  const open = (to: string) =>
    void navigate({ to: '/sessions/$id/$tab', params: { id, tab: 'files' }, search: to === '' ? {} : { path: to } });
  const send = (chosen: readonly File[]) => {
    reset.current?.();
    if (chosen.length > 0) upload.mutate({ path, files: chosen });
  };
  const download = async (name: string) => {
    setProblem(null);
    try {
      saveBlob(await fetchFile(id, [...parts, name].join('/'), t('files.damaged')), name);
    } catch (error) {
      setProblem(error);
    }
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: dropping is a second way beside the button
    <div
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event: DragEvent) => {
        event.preventDefault();
        send([...event.dataTransfer.files]);
      }}
    >
      <Stack>
        <Group justify="space-between">
          <nav aria-label={t('files.path')}>
            <Breadcrumbs>
              {['', ...parts].map((part, index) => {
                const here = parts.slice(0, index).join('/');
                const name = index === 0 ? t('files.home') : part;
                return index === parts.length ? (
                  <span key={here}>{name}</span>
                ) : (
                  <Anchor key={here} component="button" type="button" onClick={() => open(here)}>
                    {name}
                  </Anchor>
                );
              })}
            </Breadcrumbs>
          </nav>
          <FileButton multiple resetRef={reset} onChange={send} inputProps={{ 'aria-label': t('files.upload') }}>
            {(props) => (
              <Button
                {...props}
                size="xs"
                loading={upload.isPending}
                leftSection={<IconUpload size={16} aria-hidden />}
              >
                {t('files.upload')}
              </Button>
            )}
          </FileButton>
        </Group>
        <Text size="sm" c="dimmed">
          {t('files.hint')}
        </Text>
        <div role="status">{upload.isSuccess && t('files.uploaded', { count: upload.data })}</div>
        {upload.isError && <ProblemAlert error={upload.error} />}
        {problem !== null && <ProblemAlert error={problem} />}
        <Query query={files}>
          {(entries) =>
            entries.length === 0 ? (
              <EmptyState title={t('files.none')} />
            ) : (
              <SimpleTable
                label={t('files.title')}
                rows={entries}
                idOf={(entry) => entry.name}
                columns={[
                  {
                    label: t('files.name'),
                    cell: (entry) => (
                      <Group gap="xs" wrap="nowrap">
                        {entry.isDirectory ? <IconFolder size={16} aria-hidden /> : <IconFile size={16} aria-hidden />}
                        {entry.isDirectory ? (
                          <Anchor
                            component="button"
                            type="button"
                            onClick={() => open([...parts, entry.name].join('/'))}
                          >
                            {entry.name}
                          </Anchor>
                        ) : (
                          <span>{entry.name}</span>
                        )}
                      </Group>
                    ),
                  },
                  {
                    label: t('files.size'),
                    cell: (entry) => (entry.isDirectory ? '' : formatBytes(entry.size, i18n.language)),
                  },
                  {
                    label: t('files.changed'),
                    cell: (entry) => <RelativeTime at={new Date(entry.changed * 1000).toISOString()} />,
                  },
                  {
                    label: t('files.actions'),
                    cell: (entry) =>
                      entry.isDirectory ? null : (
                        <ActionIcon
                          variant="subtle"
                          color="gray"
                          aria-label={t('files.download', { name: entry.name })}
                          onClick={() => void download(entry.name)}
                        >
                          <IconDownload size={16} aria-hidden />
                        </ActionIcon>
                      ),
                  },
                ]}
              />
            )
          }
        </Query>
      </Stack>
    </div>
  );
}

/** The files below the home of a session: looked through, fetched, and added. */
export function FilesTab({ session }: { session: SessionDetails }) {
  const { t } = useTranslation('sessionWork');
  return isRunning(session.status) ? <Files id={session.id ?? ''} /> : <EmptyState title={t('files.notRunning')} />;
}
export default FilesTab;
