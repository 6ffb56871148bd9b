import { Button, Switch, Text, Title } from '@mantine/core';
import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useParams } from '@tanstack/react-router';
import { useEffect, useRef, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { boot } from '../../../api/boot';
import { AnchorLink } from '../../../components/AnchorLink';
import { Confirm } from '../../../components/Confirm';
import { EmptyState } from '../../../components/EmptyState';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Waiting } from '../../../components/Query';
import { StatusBadge, type Tone } from '../../../components/StatusBadge';
import { type ConnectionState, TerminalConnection } from '../connection';
import { Screen, type ScreenHandle } from '../parts/Screen';
import { hasTerminals, terminalOptions, terminalUrl } from '../queries';
import { excerpt, lineCount } from '../rules';
import classes from './TerminalPage.module.css';

const tones: Record<ConnectionState, Tone> = {
  connecting: 'busy',
  open: 'good',
  waiting: 'warn',
  ended: 'idle',
  stopped: 'bad',
};
const readAloudKey = 'backendai-terminal-read-aloud';

function readsAloud(): boolean {
  try {
    return localStorage.getItem(readAloudKey) === 'true';
  } catch {
    return false;
  }
}

/** A shell of a session, which fills the window. */
function Shell({ id, name }: { id: string; name: string }) {
  const { t } = useTranslation('terminal');
  const client = useQueryClient();
  const screen = useRef<ScreenHandle>(null);
  const leave = useRef<HTMLAnchorElement>(null);
  const connection = useRef<TerminalConnection | null>(null);
  const size = useRef<readonly [number, number]>([24, 80]);
  const [state, setState] = useState<ConnectionState>('connecting');
  const [pasted, setPasted] = useState('');
  const [isReadAloud, setReadAloud] = useState(readsAloud);
  const texts = useRef({ newShell: '' });
  texts.current = { newShell: t('newShell') };

  useEffect(() => {
    let wasLost = false;
    const made = new TerminalConnection({
      url: (rows, columns) => terminalUrl(id, rows, columns),
      onOutput: (bytes) => screen.current?.write(bytes),
      onError: (text) => screen.current?.note(text),
      onState: (next) => {
        if (next === 'open' && wasLost) screen.current?.note(texts.current.newShell);
        wasLost ||= next === 'waiting' || next === 'ended';
        setState(next);
      },
      // The refusal of a WebSocket tells no reason: the session's status, or an expired login, is behind it.
      mayRetry: () =>
        client.fetchQuery({ ...terminalOptions(id), staleTime: 0 }).then(
          (session) => hasTerminals(session?.status),
          () => true,
        ),
    });
    connection.current = made;
    made.resize(...size.current);
    made.start();
    return () => made.stop();
  }, [id, client]);

  const paste = () => {
    connection.current?.type(pasted.replace(/\r?\n/g, '\r'));
    setPasted('');
    screen.current?.focus();
  };
  const again = () => {
    connection.current?.start();
    screen.current?.focus();
  };
  return (
    <main className={classes.page}>
      <div className={classes.bar}>
        <AnchorLink to="/sessions/$id" params={{ id }} ref={leave} size="sm">
          {t('back')}
        </AnchorLink>
        <Title order={1} size="h4" className={classes.title ?? ''} title={name}>
          {name}
        </Title>
        <span role="status">
          <StatusBadge tone={tones[state]} label={t(`state.${state}`)} />
        </span>
        {(state === 'ended' || state === 'waiting' || state === 'stopped') && (
          <Button size="xs" onClick={again}>
            {state === 'ended' ? t('another') : t('now')}
          </Button>
        )}
        <Switch
          size="xs"
          label={t('readAloud')}
          checked={isReadAloud}
          onChange={(event) => {
            setReadAloud(event.currentTarget.checked);
            try {
              localStorage.setItem(readAloudKey, String(event.currentTarget.checked));
            } catch {
              // Storage may be forbidden: the choice holds until the page is left.
            }
          }}
        />
        <span className={classes.hint}>{t('leaveHint')}</span>
      </div>
      <Screen
        ref={screen}
        label={t('label', { name })}
        isReadAloud={isReadAloud}
        onText={(text) => connection.current?.type(text)}
        onBytes={(bytes) => connection.current?.typeBytes(bytes)}
        onSize={(rows, columns) => {
          size.current = [rows, columns];
          connection.current?.resize(rows, columns);
        }}
        onLongPaste={setPasted}
        onLeave={() => leave.current?.focus()}
      />
      <Confirm
        isOpen={pasted !== ''}
        isDangerous={false}
        title={t('paste.title', { count: lineCount(pasted) })}
        action={t('paste.action')}
        onConfirm={paste}
        onClose={() => setPasted('')}
      >
        <Text size="sm">{t('paste.detail')}</Text>
        <pre className={classes.preview}>{excerpt(pasted)}</pre>
      </Confirm>
    </main>
  );
}

/** The terminal of a session, on a page of its own. */
export function TerminalPage() {
  const { t } = useTranslation('terminal');
  const { id = '' } = useParams({ strict: false });
  const query = useQuery(terminalOptions(id));
  const session = query.data;
  const name = session?.name ?? id;
  useEffect(() => {
    document.title = `${t('title', { name })} · ${boot.siteName}`;
  }, [t, name]);
  const [isStarted, setStarted] = useState(false);
  const canStart = hasTerminals(session?.status);
  useEffect(() => {
    if (canStart) setStarted(true); // what is on the screen stays when the session ends
  }, [canStart]);
  if (session && (isStarted || canStart)) return <Shell id={id} name={name} />;
  return (
    <main className={classes.place}>
      <Title order={1} size="h4" mb="md">
        {t('title', { name })}
      </Title>
      {query.isError ? (
        <ProblemAlert error={query.error} onRetry={() => void query.refetch()} />
      ) : session === undefined ? (
        <Waiting />
      ) : (
        <EmptyState
          title={session === null ? t('missing') : t('notRunning', { status: session.status ?? '' })}
          action={
            <AnchorLink to="/sessions/$id" params={{ id }}>
              {t('back')}
            </AnchorLink>
          }
        >
          {session === null ? null : t('notRunningDetail')}
        </EmptyState>
      )}
    </main>
  );
}
export default TerminalPage;
