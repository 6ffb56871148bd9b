import { ActionIcon, Breadcrumbs, Button, Checkbox, FileButton, Group, Stack, Text } from '@mantine/core';
import {
  IconDownload,
  IconFile,
  IconFolder,
  IconFolderPlus,
  IconPencil,
  IconTrash,
  IconUpload,
} from '@tabler/icons-react';
import { useQueryClient } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { type DragEvent, lazy, Suspense, useEffect, useRef, useState, useSyncExternalStore } from 'react';
import { useTranslation } from 'react-i18next';
import { onForget } from '../../../api/personal';
import { AnchorLink } from '../../../components/AnchorLink';
import { Confirm } from '../../../components/Confirm';
import { EmptyState } from '../../../components/EmptyState';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Waiting } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { loadMessages } from '../../../i18n';
import { formatBytes } from '../../../i18n/format';
import {
  downloadUrl,
  type FileEntry,
  folderKeys,
  namesPresent,
  requestUploads,
  useDeleteFiles,
  useFiles,
  useMakeDirectory,
} from '../queries';
import { joinPath, partsOf } from '../rules';
import { forgetUploads, UploadQueue } from '../uploads';
import classes from './Files.module.css';
import { NameDialog } from './NameDialog';
import { UploadList } from './UploadList';

function PathLinks({ id, name, path }: { id: string; name: string; path: string }) {
  const { t } = useTranslation('folders');
  const parts = partsOf(path);
  return (
    <nav aria-label={t('path')}>
      <Breadcrumbs>
        {parts.length === 0 ? (
          <span>{name}</span>
        ) : (
          <AnchorLink to="/folders/$id" params={{ id }}>
            {name}
          </AnchorLink>
        )}
        {parts.map((part, index) => {
          const here = joinPath(...parts.slice(0, index + 1));
          return index === parts.length - 1 ? (
            <span key={here}>{part}</span>
          ) : (
            <AnchorLink key={here} to="/folders/$id/files/$" params={{ id, _splat: here }}>
              {part}
            </AnchorLink>
          );
        })}
      </Breadcrumbs>
    </nav>
  );
}

const MoveDialog = lazy(() => import('./MoveDialog'));
const Preview = lazy(async () => (await Promise.all([import('./Preview'), loadMessages('preview')]))[0]);

const queues = new Map<string, UploadQueue>();
onForget(() => {
  for (const queue of queues.values()) queue.stop();
  queues.clear();
  forgetUploads();
});

/** Returns the uploads of a folder, which go on while other pages are shown. */
function useUploads(id: string) {
  const client = useQueryClient();
  let queue = queues.get(id);
  if (queue === undefined) {
    queue = new UploadQueue({
      folder: id,
      requestTickets: (files) => requestUploads(id, files),
      onDone: () => void client.invalidateQueries({ queryKey: folderKeys.all }),
    });
    queues.set(id, queue);
  }
  const items = useSyncExternalStore(queue.subscribe, queue.snapshot);
  const isBusy = items.some((item) => item.state === 'sending' || item.state === 'waiting');
  useEffect(() => {
    if (!isBusy) return;
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    window.addEventListener('beforeunload', ask);
    return () => window.removeEventListener('beforeunload', ask);
  }, [isBusy]);
  return { queue, items };
}

interface FilesProps {
  id: string;
  name: string;
  path: string;
  mayWrite: boolean;
  /** The file whose content is shown instead of the directory; empty for none. */
  shown: string;
}

/** The files of a directory of a folder, with what can be done with them. */
export function Files(props: FilesProps) {
  const navigate = useNavigate();
  const { id, path, shown } = props;
  // What is selected and asked is of one directory: another one begins anew.
  if (shown === '') return <Directory key={path} {...props} />;
  return (
    <Suspense fallback={<Waiting />}>
      <Preview
        id={id}
        path={joinPath(path, shown)}
        onClose={() => void navigate({ to: '/folders/$id/files/$', params: { id, _splat: path } })}
      />
    </Suspense>
  );
}

function Directory({ id, name, path, mayWrite }: FilesProps) {
  const { t, i18n } = useTranslation('folders');
  const files = useFiles(id, path);
  const makeDirectory = useMakeDirectory();
  const deleteFiles = useDeleteFiles();
  const { queue, items } = useUploads(id);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [dialog, setDialog] = useState<'directory' | 'delete' | null>(null);
  const [moved, setMoved] = useState<string | null>(null);
  const [conflicts, setConflicts] = useState<File[]>([]);
  const [isChecking, setChecking] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  const resetPicker = useRef<() => void>(null);
  const entries: FileEntry[] = files.data?.pages.flatMap((page) => page.items) ?? [];

  const send = (chosen: readonly File[]) =>
    queue.add(chosen.map((file) => ({ file, path: joinPath(path, file.name) })));
  const choose = async (chosen: readonly File[]) => {
    resetPicker.current?.();
    if (chosen.length === 0) return;
    setProblem(null);
    setChecking(true);
    try {
      const present = await namesPresent(
        id,
        path,
        chosen.map((file) => file.name),
      );
      send(chosen.filter((file) => !present.has(file.name)));
      setConflicts(chosen.filter((file) => present.has(file.name)));
    } catch (error) {
      setProblem(error);
    } finally {
      setChecking(false);
    }
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    if (mayWrite && !isChecking) void choose([...event.dataTransfer.files]);
  };
  const download = async (entry: FileEntry) => {
    setProblem(null);
    try {
      window.location.assign(await downloadUrl(id, joinPath(path, entry.name), entry.type === 'DIRECTORY'));
    } catch (error) {
      setProblem(error);
    }
  };
  const toggle = (entry: string, isSelected: boolean) => {
    const next = new Set(selected);
    if (isSelected) next.add(entry);
    else next.delete(entry);
    setSelected(next);
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: dropping is a second way beside the button
    <div onDragOver={(event) => event.preventDefault()} onDrop={drop}>
      <Stack>
        <Group justify="space-between">
          <PathLinks id={id} name={name} path={path} />
          {mayWrite && (
            <Group gap="xs">
              <FileButton
                multiple
                resetRef={resetPicker}
                onChange={(chosen) => void choose(chosen)}
                inputProps={{ 'aria-label': t('upload') }}
              >
                {(props) => (
                  <Button {...props} size="xs" loading={isChecking} leftSection={<IconUpload size={16} aria-hidden />}>
                    {t('upload')}
                  </Button>
                )}
              </FileButton>
              <Button
                size="xs"
                variant="default"
                leftSection={<IconFolderPlus size={16} aria-hidden />}
                onClick={() => {
                  makeDirectory.reset();
                  setDialog('directory');
                }}
              >
                {t('directory.open')}
              </Button>
              {selected.size > 0 && (
                <Button
                  size="xs"
                  variant="default"
                  leftSection={<IconTrash size={16} aria-hidden />}
                  onClick={() => {
                    deleteFiles.reset();
                    setDialog('delete');
                  }}
                >
                  {t('files.delete', { count: selected.size })}
                </Button>
              )}
            </Group>
          )}
        </Group>
        <UploadList items={items} queue={queue} />
        {problem !== null && <ProblemAlert error={problem} />}
        {files.isError && <ProblemAlert error={files.error} onRetry={() => void files.refetch()} />}
        {files.isPending && <Waiting />}
        {files.isSuccess && entries.length === 0 && (
          <EmptyState title={t('files.none')}>{mayWrite ? t('files.noneHint') : null}</EmptyState>
        )}
        {entries.length > 0 && (
          <SimpleTable
            label={t('files.title')}
            rows={entries}
            idOf={(entry) => entry.name}
            columns={[
              {
                label: t('column.name'),
                cell: (entry) => (
                  <Group gap="xs" wrap="nowrap">
                    {mayWrite && (
                      <Checkbox
                        aria-label={t('files.select', { name: entry.name })}
                        checked={selected.has(entry.name)}
                        onChange={(event) => toggle(entry.name, event.currentTarget.checked)}
                      />
                    )}
                    {entry.type === 'DIRECTORY' ? (
                      <IconFolder size={16} aria-hidden />
                    ) : (
                      <IconFile size={16} aria-hidden />
                    )}
                    {entry.type === 'DIRECTORY' ? (
                      <AnchorLink to="/folders/$id/files/$" params={{ id, _splat: joinPath(path, entry.name) }}>
                        {entry.name}
                      </AnchorLink>
                    ) : (
                      <AnchorLink
                        to="/folders/$id/files/$"
                        params={{ id, _splat: path }}
                        search={{ show: entry.name }}
                        className={classes.name ?? ''}
                      >
                        {entry.name}
                      </AnchorLink>
                    )}
                  </Group>
                ),
              },
              {
                label: t('column.size'),
                cell: (entry) => (entry.type === 'DIRECTORY' ? '' : formatBytes(entry.size, i18n.language)),
              },
              {
                label: t('column.changed'),
                cell: (entry) => <RelativeTime at={new Date(entry.modified * 1000).toISOString()} />,
              },
              {
                label: t('column.actions'),
                cell: (entry) => (
                  <Group gap={4} wrap="nowrap">
                    <ActionIcon
                      variant="subtle"
                      color="gray"
                      size="md"
                      onClick={() => void download(entry)}
                      aria-label={t('files.download', { name: entry.name })}
                    >
                      <IconDownload size={16} aria-hidden />
                    </ActionIcon>
                    {mayWrite && (
                      <ActionIcon
                        variant="subtle"
                        color="gray"
                        size="md"
                        onClick={() => setMoved(joinPath(path, entry.name))}
                        aria-label={t('move.open', { name: entry.name })}
                      >
                        <IconPencil size={16} aria-hidden />
                      </ActionIcon>
                    )}
                  </Group>
                ),
              },
            ]}
          />
        )}
        {files.hasNextPage && (
          <Button variant="default" loading={files.isFetchingNextPage} onClick={() => void files.fetchNextPage()}>
            {t('files.more')}
          </Button>
        )}
      </Stack>
      {dialog === 'directory' && (
        <NameDialog
          title={t('directory.title')}
          label={t('directory.name')}
          action={t('directory.action')}
          isBusy={makeDirectory.isPending}
          error={makeDirectory.error}
          onClose={() => setDialog(null)}
          onSubmit={(entry) =>
            makeDirectory.mutate({ id, path: joinPath(path, entry) }, { onSuccess: () => setDialog(null) })
          }
        />
      )}
      <Suspense>{moved !== null && <MoveDialog id={id} path={moved} onClose={() => setMoved(null)} />}</Suspense>
      <Confirm
        isOpen={dialog === 'delete'}
        title={t('files.deleteTitle', { count: selected.size })}
        action={t('files.deleteAction')}
        isBusy={deleteFiles.isPending}
        error={deleteFiles.error}
        onClose={() => setDialog(null)}
        onConfirm={() =>
          deleteFiles.mutate(
            { id, files: [...selected].map((entry) => joinPath(path, entry)) },
            {
              onSuccess: () => {
                setSelected(new Set());
                setDialog(null);
              },
            },
          )
        }
      >
        <Text>{t('files.deleteLoses')}</Text>
        <Text size="sm">
          {[...selected].slice(0, 10).join(', ')}
          {selected.size > 10 ? ' …' : ''}
        </Text>
      </Confirm>
      <Confirm
        isOpen={conflicts.length > 0}
        title={t('conflict.title', { count: conflicts.length })}
        action={t('conflict.action')}
        onClose={() => setConflicts([])}
        onConfirm={() => {
          send(conflicts);
          setConflicts([]);
        }}
      >
        <Text>{t('conflict.detail')}</Text>
        <Text size="sm">
          {conflicts
            .slice(0, 10)
            .map((file) => file.name)
            .join(', ')}
          {conflicts.length > 10 ? ' …' : ''}
        </Text>
      </Confirm>
    </div>
  );
}
