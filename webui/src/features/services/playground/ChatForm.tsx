import { Button, Group, NumberInput, Paper, Stack, Text, Textarea } from '@mantine/core';
import { IconHandStop, IconSend } from '@tabler/icons-react';
import { type KeyboardEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { formatDuration, formatNumber } from '../../../i18n/format';
import { AnswerState } from './AnswerState';
import { type Answer, useCall } from './calls';
import { ModelField } from './ModelField';
import classes from './Playground.module.css';
import { ChatReader, type ChatView } from './readers';
import { type ChatDraft, chatCall, type Message } from './requests';

/** What was asked, with the answer; the last one may still arrive. */
interface Turn {
  asked: string;
  answer: Answer<ChatView> | null;
}

function Figures({ shown }: { shown: ChatView }) {
  const { t, i18n } = useTranslation('playground');
  const parts = [
    ...(shown.firstMs === null ? [] : [t('chat.first', { time: formatDuration(shown.firstMs / 1000, i18n.language) })]),
    ...(shown.tokens === 0 ? [] : [t(shown.isCounted ? 'chat.tokens' : 'chat.pieces', { count: shown.tokens })]),
    ...(shown.tokensPerSecond === null
      ? []
      : [t('chat.speed', { speed: formatNumber(shown.tokensPerSecond, i18n.language) })]),
    ...(shown.isCut ? [t('chat.cut')] : []),
  ];
  return parts.length === 0 ? null : (
    <Text size="sm" c="dimmed">
      {parts.join(' · ')}
    </Text>
  );
}

function TurnCard({ turn, number }: { turn: Turn; number: number }) {
  const { t } = useTranslation('playground');
  const { answer } = turn;
  const isBusy = answer?.state === 'waiting' || answer?.state === 'reading';
  return (
    <Paper withBorder p="sm" component="article" bg="var(--app-surface)" aria-label={t('chat.turn', { number })}>
      <Stack gap="xs">
        <Text size="sm" fw={600}>
          {t('chat.you')}
        </Text>
        <p className={classes.text}>{turn.asked}</p>
        <Text size="sm" fw={600}>
          {t('chat.model')}
        </Text>
        {answer && (
          <>
            {answer.shown.thought !== '' && (
              <p className={`${classes.text} ${classes.thought}`}>{answer.shown.thought}</p>
            )}
            <p className={classes.text} aria-busy={isBusy}>
              {answer.shown.text}
            </p>
            <Group gap="xs">
              <AnswerState answer={answer} error={answer.shown.error} />
              <Figures shown={answer.shown} />
            </Group>
          </>
        )}
      </Stack>
    </Paper>
  );
}

/** The messages of turns that were answered, of which the next answer knows. */
function messagesOf(turns: readonly Turn[]): Message[] {
  return turns.flatMap(({ asked, answer }): Message[] =>
    answer === null || answer.shown.text === ''
      ? []
      : [
          { role: 'user', content: asked },
          { role: 'assistant', content: answer.shown.text },
        ],
  );
}

/** A conversation with a model, token by token, with what it costs in time. */
export function ChatForm({ service, models }: { service: string; models: readonly string[] }) {
  const { t } = useTranslation('playground');
  const [draft, setDraft] = useState<ChatDraft>({ model: '', system: '', temperature: '', maxTokens: '' });
  const [asked, setAsked] = useState('');
  const [past, setPast] = useState<Turn[]>([]);
  const [current, setCurrent] = useState<string | null>(null);
  const call = useCall<ChatView>(service);
  const turns: Turn[] = current === null ? past : [...past, { asked: current, answer: call.answer }];
  const model = draft.model || (models[0] ?? '');
  const canSend = asked.trim() !== '' && model !== '' && !call.isRunning;
  const change = (part: Partial<ChatDraft>) => setDraft((before) => ({ ...before, ...part }));
  const submit = () => {
    if (!canSend) return;
    setPast(turns);
    setCurrent(asked);
    setAsked('');
    const messages: Message[] = [...messagesOf(turns), { role: 'user', content: asked }];
    void call.start(chatCall({ ...draft, model }, messages), new ChatReader());
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    submit();
  };
  return (
    <Stack>
      <Card title={t('settings')}>
        <Stack gap="sm">
          <Group align="flex-start">
            <ModelField models={models} value={model} onChange={(value) => change({ model: value })} />
            <NumberInput
              label={t('chat.temperature')}
              description={t('ofService')}
              min={0}
              max={2}
              step={0.1}
              w={170}
              value={draft.temperature}
              onChange={(temperature) => change({ temperature })}
            />
            <NumberInput
              label={t('chat.maxTokens')}
              description={t('ofService')}
              min={1}
              max={1_000_000}
              allowDecimal={false}
              w={170}
              value={draft.maxTokens}
              onChange={(maxTokens) => change({ maxTokens })}
            />
          </Group>
          <Textarea
            label={t('chat.system')}
            description={t('chat.systemHint')}
            autosize
            minRows={1}
            maxRows={8}
            value={draft.system}
            onChange={(event) => change({ system: event.currentTarget.value })}
          />
        </Stack>
      </Card>
      {turns.length > 0 && (
        <section className={classes.log} aria-label={t('chat.log')}>
          {turns.map((turn, index) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: turns are only added at the end, or all are taken away
            <TurnCard key={index} turn={turn} number={index + 1} />
          ))}
        </section>
      )}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <Stack gap="sm">
          <Textarea
            label={t('chat.message')}
            description={t('chat.messageHint')}
            autosize
            minRows={2}
            maxRows={16}
            value={asked}
            onChange={(event) => setAsked(event.currentTarget.value)}
            onKeyDown={onKey}
          />
          <Group>
            {call.isRunning ? (
              <Button
                type="button"
                variant="default"
                leftSection={<IconHandStop size={16} aria-hidden />}
                onClick={call.stop}
              >
                {t('stop')}
              </Button>
            ) : (
              <Button type="submit" disabled={!canSend} leftSection={<IconSend size={16} aria-hidden />}>
                {t('send')}
              </Button>
            )}
            {turns.length > 0 && (
              <Button
                type="button"
                variant="default"
                onClick={() => {
                  call.clear();
                  setPast([]);
                  setCurrent(null);
                }}
              >
                {t('chat.clear')}
              </Button>
            )}
          </Group>
        </Stack>
      </form>
    </Stack>
  );
}
