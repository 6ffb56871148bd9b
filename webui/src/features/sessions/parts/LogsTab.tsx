import { Button, Group, Select, Stack, Switch, Text, TextInput } from '@mantine/core';
import { IconDownload, IconSearch } from '@tabler/icons-react';
import { useVirtualizer } from '@tanstack/react-virtual';
import { useEffect, useMemo, useRef, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { saveBlob } from '../../../api/save';
import { EmptyState } from '../../../components/EmptyState';
import { Query } from '../../../components/Query';
import { type SessionDetails, useLogs } from '../queries';
import { isLive, linesOf } from '../rules';
import classes from './LogsTab.module.css';

const atEndPixels = 40;

/** Shows lines of which only those on screen are in the document; follows the end while it is on screen. */
function LogView({ lines, label }: { lines: string[]; label: string }) {
  const { t } = useTranslation('sessions');
  const frame = useRef<HTMLElement>(null);
  const isAtEnd = useRef(true);
  const [unseen, setUnseen] = useState(0);
  const lastCount = useRef(lines.length);
  const virtualizer = useVirtualizer({
    count: lines.length,
    getScrollElement: () => frame.current,
    estimateSize: () => 20,
    overscan: 20,
  });
  const count = lines.length;
  useEffect(() => {
    const added = count - lastCount.current;
    lastCount.current = count;
    if (isAtEnd.current && count > 0) {
      virtualizer.scrollToIndex(count - 1, { align: 'end' });
      setUnseen(0);
    } else if (added > 0) setUnseen((before) => before + added);
  }, [count, virtualizer]);
  return (
    <div className={classes.outer}>
      <section
        ref={frame}
        className={classes.frame}
        aria-label={label}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reached by the keyboard
        tabIndex={0}
        onScroll={(event) => {
          const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
          isAtEnd.current = scrollHeight - scrollTop - clientHeight < atEndPixels;
          if (isAtEnd.current) setUnseen(0);
        }}
      >
        <div className={classes.content} style={{ height: virtualizer.getTotalSize() }}>
          {virtualizer.getVirtualItems().map((item) => (
            <div
              key={item.key}
              data-index={item.index}
              ref={virtualizer.measureElement}
              className={classes.line}
              style={{ transform: `translateY(${item.start}px)` }}
            >
              <span className={classes.number}>{item.index + 1}</span>
              <span>{lines[item.index]}</span>
            </div>
          ))}
        </div>
      </section>
      {unseen > 0 && (
        <Button
          className={classes.more ?? ''}
          size="xs"
          onClick={() => virtualizer.scrollToIndex(count - 1, { align: 'end' })}
        >
          {t('logs.unseen', { count: unseen })}
        </Button>
      )}
    </div>
  );
}

/** The console logs of the kernels of a session. */
export function LogsTab({ session }: { session: SessionDetails }) {
  const { t } = useTranslation('sessions');
  const containers = (session.containers ?? []).filter((item) => item !== null);
  const [kernel, setKernel] = useState<string | null>(null);
  const [search, setSearch] = useState('');
  const [isFollowing, setFollowing] = useState(true);
  const query = useLogs(session.id ?? '', kernel, isFollowing && isLive(session.status));
  const log = query.data?.result.logs ?? '';
  const lines = useMemo(() => linesOf(log), [log]);
  const word = search.toLowerCase();
  const shown = useMemo(
    () => (word === '' ? lines : lines.filter((line) => line.toLowerCase().includes(word))),
    [lines, word],
  );
  return (
    <Stack gap="sm">
      <Group gap="sm">
        {containers.length > 1 && (
          <Select
            aria-label={t('logs.kernel')}
            value={kernel ?? containers[0]?.id ?? null}
            onChange={setKernel}
            allowDeselect={false}
            data={containers.map((item) => ({ value: item.id ?? '', label: item.cluster_hostname ?? item.id ?? '' }))}
          />
        )}
        <TextInput
          aria-label={t('logs.search')}
          placeholder={t('logs.search')}
          leftSection={<IconSearch size={16} aria-hidden />}
          value={search}
          onChange={(event) => setSearch(event.currentTarget.value)}
        />
        <Switch
          label={t('logs.follow')}
          checked={isFollowing}
          onChange={(event) => setFollowing(event.currentTarget.checked)}
        />
        <Button
          variant="default"
          leftSection={<IconDownload size={16} aria-hidden />}
          disabled={lines.length === 0}
          onClick={() =>
            saveBlob(new Blob([log], { type: 'text/plain;charset=utf-8' }), `${session.name ?? 'session'}.log`)
          }
        >
          {t('logs.download')}
        </Button>
        <Text size="sm" c="dimmed">
          {t('logs.lines', { count: shown.length })}
        </Text>
      </Group>
      <Query query={query}>
        {() =>
          shown.length === 0 ? (
            <EmptyState title={lines.length === 0 ? t('logs.none') : t('logs.nothingMatches')} />
          ) : (
            <LogView lines={shown} label={t('tab.logs')} />
          )
        }
      </Query>
    </Stack>
  );
}
