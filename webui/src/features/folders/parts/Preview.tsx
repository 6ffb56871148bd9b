import { Button, Group, Stack, Text } from '@mantine/core';
import { IconArrowLeft, IconDownload } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useEffect, useMemo, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Problem } from '../../../api/problems';
import { Card } from '../../../components/Card';
import { EmptyState } from '../../../components/EmptyState';
import { Outputs } from '../../../components/Outputs';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { formatBytes } from '../../../i18n/format';
import {
  imageTypeOf,
  kindOf,
  mostBytes,
  type NotebookCell,
  notebookOf,
  type PreviewKind,
  readStart,
  rowsOf,
  textOf,
} from '../preview';
import { downloadUrl, folderKeys } from '../queries';
import classes from './Preview.module.css';

const mostRows = 200;

interface Content {
  kind: PreviewKind;
  bytes: Uint8Array<ArrayBuffer>;
  isCut: boolean;
}

function ImageView({ name, bytes }: { name: string; bytes: Uint8Array<ArrayBuffer> }) {
  const { t } = useTranslation('preview');
  const [url, setUrl] = useState('');
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([bytes], { type: imageTypeOf(name) }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [bytes, name]);
  return url === '' ? null : <img className={classes.image} src={url} alt={t('image', { name })} />;
}

function TextView({ name, text }: { name: string; text: string }) {
  const { t } = useTranslation('preview');
  return (
    <section
      className={classes.text}
      aria-label={t('text', { name })}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reached by the keyboard
      tabIndex={0}
    >
      {text}
    </section>
  );
}

function TableView({ name, text }: { name: string; text: string }) {
  const { t } = useTranslation('preview');
  const { rows, hasMore } = useMemo(() => rowsOf(text, name.endsWith('.tsv') ? '\t' : ',', mostRows + 1), [text, name]);
  const [head = [], ...body] = rows;
  return (
    <>
      <SimpleTable<{ id: string; cells: string[] }>
        label={t('table', { name })}
        minWidth={head.length * 120}
        rows={body.map((cells, index) => ({ id: String(index), cells }))}
        idOf={(row) => row.id}
        columns={head.slice(0, 100).map((label, column) => ({
          label: label || `#${column + 1}`,
          cell: (row) => row.cells[column],
        }))}
      />
      {hasMore && (
        <Text size="sm" c="dimmed">
          {t('rows', { count: body.length })}
        </Text>
      )}
    </>
  );
}

function NotebookView({ cells }: { cells: readonly NotebookCell[] }) {
  const { t } = useTranslation('preview');
  return (
    <Stack gap="md">
      {cells.map((cell, index) => (
        <section
          // biome-ignore lint/suspicious/noArrayIndexKey: cells of a file do not change their places
          key={index}
          aria-label={t('cell', { number: index + 1 })}
          className={cell.isCode ? classes.cell : undefined}
        >
          <Stack gap="xs">
            <Outputs outputs={[{ kind: 'text', stream: 'stdout', text: cell.source }]} />
            <Outputs outputs={cell.outputs} />
          </Stack>
        </section>
      ))}
    </Stack>
  );
}

function View({ name, content }: { name: string; content: Content }) {
  const { t, i18n } = useTranslation('preview');
  const { kind, bytes, isCut } = content;
  const text = useMemo(() => (kind === 'image' ? null : textOf(bytes)), [kind, bytes]);
  const cells = useMemo(() => (kind === 'notebook' && text !== null ? notebookOf(text) : null), [kind, text]);
  if (isCut && (kind === 'image' || kind === 'notebook')) {
    return <EmptyState title={t('tooLarge', { size: `> ${formatBytes(mostBytes[kind], i18n.language)}` })} />;
  }
  if (kind === 'image') return <ImageView name={name} bytes={bytes} />;
  if (text === null) return <EmptyState title={t('binary')}>{t('binaryHint')}</EmptyState>;
  if (cells !== null) return <NotebookView cells={cells} />;
  return (
    <Stack gap="xs">
      {kind === 'notebook' && <Text size="sm">{t('damaged')}</Text>}
      {kind === 'table' ? <TableView name={name} text={text} /> : <TextView name={name} text={text} />}
      {isCut && (
        <Text size="sm" c="dimmed">
          {t('cutOff', { size: formatBytes(mostBytes[kind], i18n.language) })}
        </Text>
      )}
    </Stack>
  );
}

/** The content of a file of a folder: text, an image, a table or a notebook. All of it is foreign. */
export function Preview({ id, path, onClose }: { id: string; path: string; onClose: () => void }) {
  const { t } = useTranslation('preview');
  const name = path.slice(path.lastIndexOf('/') + 1);
  const download = useMutation({
    mutationFn: async () => window.location.assign(await downloadUrl(id, path, false)),
  });
  const query = useQuery({
    queryKey: [...folderKeys.files(id, path), 'preview'],
    gcTime: 0,
    queryFn: async ({ signal }): Promise<Content> => {
      const kind = kindOf(name);
      const url = await downloadUrl(id, path, false);
      const response = await fetch(url, { signal, referrerPolicy: 'no-referrer' }).catch(() => null);
      if (response === null) throw new Problem({ title: t('offline'), status: 0 });
      if (!response.ok)
        throw new Problem({ title: t('missing', { status: response.status }), status: response.status });
      return { kind, ...(await readStart(response, mostBytes[kind])) };
    },
  });
  return (
    <Stack>
      <Group>
        <Button size="xs" variant="default" leftSection={<IconArrowLeft size={16} aria-hidden />} onClick={onClose}>
          {t('back')}
        </Button>
        <Button
          size="xs"
          variant="default"
          leftSection={<IconDownload size={16} aria-hidden />}
          onClick={() => download.mutate()}
        >
          {t('download')}
        </Button>
      </Group>
      {download.isError && <ProblemAlert error={download.error} />}
      <Card title={name}>
        <Query query={query}>{(content) => <View name={name} content={content} />}</Query>
      </Card>
    </Stack>
  );
}
export default Preview;
