import { Button, Code, Group, Stack, Text, Textarea } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { linesOf } from '../../../api/forms/lines';
import { Card } from '../../../components/Card';
import { SimpleTable } from '../../../components/SimpleTable';
import { formatDuration, formatNumber } from '../../../i18n/format';
import { AnswerState } from './AnswerState';
import { useCall } from './calls';
import { ModelField } from './ModelField';
import classes from './Playground.module.css';
import { embeddingsOf, errorOf, TextReader } from './readers';
import { embeddingsCall } from './requests';

const shownNumbers = 4;

/** Embeds texts, and tells how near each is to the first. */
export function EmbeddingsForm({ service, models }: { service: string; models: readonly string[] }) {
  const { t, i18n } = useTranslation('playground');
  const [chosen, setChosen] = useState('');
  const [lines, setLines] = useState('');
  const [sent, setSent] = useState<readonly string[]>([]);
  const call = useCall<{ text: string; isText: boolean }>(service);
  const model = chosen || (models[0] ?? '');
  const texts = linesOf(lines);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setSent(texts);
    void call.start(embeddingsCall(model, texts), new TextReader());
  };
  const { answer } = call;
  const isDone = answer?.state === 'done';
  const embedded = isDone && answer.status === 200 ? embeddingsOf(sent, answer.shown.text) : null;
  const error = isDone && embedded === null ? errorOf(answer.shown.text) : null;
  const number = (value: number) => formatNumber(value, i18n.language);
  return (
    <Stack>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <ModelField models={models} value={model} onChange={setChosen} />
          <Textarea
            label={t('embeddings.texts')}
            description={t('embeddings.textsHint')}
            autosize
            minRows={3}
            maxRows={16}
            value={lines}
            onChange={(event) => setLines(event.currentTarget.value)}
          />
          <Group>
            {call.isRunning ? (
              <Button type="button" variant="default" onClick={call.stop}>
                {t('stop')}
              </Button>
            ) : (
              <Button type="submit" disabled={texts.length === 0 || model === ''}>
                {t('send')}
              </Button>
            )}
          </Group>
        </Stack>
      </form>
      {answer && (
        <Card title={t('answer')}>
          <Stack gap="sm">
            <Group gap="xs">
              <AnswerState answer={answer} error={error} />
              {isDone && (
                <Text size="sm" c="dimmed">
                  {formatDuration(answer.ms / 1000, i18n.language)}
                </Text>
              )}
            </Group>
            {embedded && (
              <SimpleTable
                label={t('answer')}
                rows={embedded.map((each, index) => ({ ...each, id: String(index) }))}
                idOf={({ id }) => id}
                columns={[
                  { label: t('embeddings.text'), cell: ({ text }) => <span className={classes.text}>{text}</span> },
                  { label: t('embeddings.numbers'), cell: ({ numbers }) => number(numbers.length) },
                  {
                    label: t('embeddings.first'),
                    cell: ({ numbers }) => (
                      <Code>
                        {numbers.slice(0, shownNumbers).map(number).join(', ')}
                        {numbers.length > shownNumbers && ' …'}
                      </Code>
                    ),
                  },
                  { label: t('embeddings.likeness'), cell: ({ likeness }) => likeness.toFixed(3) },
                ]}
              />
            )}
          </Stack>
        </Card>
      )}
    </Stack>
  );
}
