import { ActionIcon, Button, Group, Paper, PasswordInput, Stack, Text, TextInput } from '@mantine/core';
import { IconHandStop, IconPlayerPlay, IconTrash } from '@tabler/icons-react';
import { useState, useSyncExternalStore } from 'react';
import { useTranslation } from 'react-i18next';
import { EmptyState } from '../../../components/EmptyState';
import { Outputs } from '../../../components/Outputs';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { StatusBadge, type Tone } from '../../../components/StatusBadge';
import { formatDuration } from '../../../i18n/format';
import type { Cell, CellBook, CellState } from '../cells';
import type { SessionDetails } from '../queries';
import { isRunning } from '../rules';
import { bookOf, useInterrupt } from '../work';
import classes from './CellsTab.module.css';
import { CodeField } from './CodeField';

const tones: Record<CellState, Tone> = {
  new: 'idle',
  queued: 'wait',
  running: 'busy',
  input: 'warn',
  done: 'good',
  failed: 'bad',
};

function InputLine({ cell, book }: { cell: Cell; book: CellBook }) {
  const { t } = useTranslation('sessionWork');
  const [text, setText] = useState('');
  const Field = cell.isSecret ? PasswordInput : TextInput;
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        book.input(text);
        setText('');
      }}
    >
      <Group align="end" gap="xs">
        <Field
          label={t('cells.input')}
          value={text}
          onChange={(event) => setText(event.currentTarget.value)}
          autoComplete="off"
          data-autofocus
          flex={1}
        />
        <Button type="submit">{t('cells.send')}</Button>
      </Group>
    </form>
  );
}

function CellCard({ cell, book, index, id }: { cell: Cell; book: CellBook; index: number; id: string }) {
  const { t, i18n } = useTranslation('sessionWork');
  const interrupt = useInterrupt(id);
  const isBusy = cell.state === 'running' || cell.state === 'input';
  const number = index + 1;
  return (
    <Paper withBorder p="sm" component="section" bg="var(--app-surface)" aria-label={t('cells.code', { number })}>
      <Stack gap="xs">
        <CodeField cell={cell} book={book} number={number} sessionId={id} />
        <Group gap="xs">
          <Button
            size="xs"
            leftSection={<IconPlayerPlay size={14} aria-hidden />}
            aria-label={t('cells.runNumber', { number })}
            disabled={cell.code.trim() === '' || isBusy || cell.state === 'queued'}
            onClick={() => void book.run(cell.id)}
          >
            {t('cells.run')}
          </Button>
          {isBusy && (
            <Button
              size="xs"
              variant="default"
              leftSection={<IconHandStop size={14} aria-hidden />}
              loading={interrupt.isPending}
              onClick={() => {
                book.forgetQueue();
                interrupt.mutate();
              }}
            >
              {t('cells.interrupt')}
            </Button>
          )}
          <span role="status">
            {cell.state !== 'new' && <StatusBadge tone={tones[cell.state]} label={t(`cells.state.${cell.state}`)} />}
          </span>
          <Text size="sm" c="dimmed" flex={1}>
            {cell.number > 0 && `[${cell.number}]`}{' '}
            {cell.seconds !== null && formatDuration(cell.seconds, i18n.language)}
          </Text>
          <ActionIcon
            variant="subtle"
            color="gray"
            aria-label={t('cells.remove', { number })}
            disabled={isBusy || cell.state === 'queued'}
            onClick={() => book.remove(cell.id)}
          >
            <IconTrash size={16} aria-hidden />
          </ActionIcon>
        </Group>
        {cell.outputs.length > 0 && (
          <div className={classes.output}>
            <Outputs outputs={cell.outputs} />
          </div>
        )}
        {cell.state === 'input' && <InputLine cell={cell} book={book} />}
        {cell.problem && <ProblemAlert error={cell.problem} />}
        {interrupt.isError && <ProblemAlert error={interrupt.error} />}
      </Stack>
    </Paper>
  );
}

/** Cells of code that run in the session, with their text, figures, tables and errors. */
export function CellsTab({ session }: { session: SessionDetails }) {
  const { t } = useTranslation('sessionWork');
  const id = session.id ?? '';
  const book = bookOf(id);
  const cells = useSyncExternalStore(book.subscribe, book.snapshot);
  if (!isRunning(session.status) && cells.every((cell) => cell.number === 0)) {
    return <EmptyState title={t('cells.notRunning')} />;
  }
  return (
    <Stack>
      <Text size="sm" c="dimmed">
        {t('cells.hint')}
      </Text>
      {cells.map((cell, index) => (
        <CellCard key={cell.id} cell={cell} book={book} index={index} id={id} />
      ))}
    </Stack>
  );
}
export default CellsTab;
