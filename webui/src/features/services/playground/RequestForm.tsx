import { Button, Group, NativeSelect, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Facts } from '../../../components/Facts';
import { formatBytes, formatDuration } from '../../../i18n/format';
import { AnswerState } from './AnswerState';
import { useCall } from './calls';
import classes from './Playground.module.css';
import { TextReader } from './readers';
import { hasBody, isPath, methods } from './requests';

/** Any request: a method, a path and a body; its answer is shown as text, whatever it is. */
export function RequestForm({ service }: { service: string }) {
  const { t, i18n } = useTranslation('playground');
  const [draft, setDraft] = useState({ method: 'GET', path: '/', type: 'application/json', body: '' });
  const call = useCall<{ text: string; isText: boolean }>(service);
  const change = (part: Partial<typeof draft>) => setDraft((before) => ({ ...before, ...part }));
  const { method, path, type, body } = draft;
  const isWrong = !isPath(path);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isWrong) return;
    const content = hasBody(method) ? { body, content_type: type.trim() || 'application/json' } : {};
    void call.start({ method, path, ...content }, new TextReader());
  };
  const { answer } = call;
  return (
    <Stack>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <Group align="flex-start">
            <NativeSelect
              label={t('request.method')}
              data={[...methods]}
              value={method}
              w={120}
              onChange={(event) => change({ method: event.currentTarget.value })}
            />
            <TextInput
              label={t('request.path')}
              value={path}
              autoComplete="off"
              maxLength={2048}
              flex={1}
              miw={200}
              error={isWrong ? t('request.noPath') : undefined}
              onChange={(event) => change({ path: event.currentTarget.value })}
            />
          </Group>
          {hasBody(method) && (
            <>
              <TextInput
                label={t('request.type')}
                value={type}
                autoComplete="off"
                maxLength={128}
                w={{ base: '100%', sm: 280 }}
                onChange={(event) => change({ type: event.currentTarget.value })}
              />
              <Textarea
                label={t('request.body')}
                autosize
                minRows={3}
                maxRows={20}
                spellCheck={false}
                value={body}
                onChange={(event) => change({ body: event.currentTarget.value })}
              />
            </>
          )}
          <Group>
            {call.isRunning ? (
              <Button type="button" variant="default" onClick={call.stop}>
                {t('stop')}
              </Button>
            ) : (
              <Button type="submit">{t('send')}</Button>
            )}
          </Group>
        </Stack>
      </form>
      {answer && (
        <Card title={t('answer')}>
          <Stack gap="sm">
            <Group gap="xs">
              <AnswerState answer={answer} />
            </Group>
            <Facts
              rows={[
                [t('request.status'), answer.status || null],
                [t('request.answerType'), answer.mediaType],
                [t('request.size'), answer.status ? formatBytes(answer.bytes, i18n.language) : null],
                [t('request.time'), formatDuration(answer.ms / 1000, i18n.language)],
              ]}
            />
            {answer.shown.text !== '' &&
              (answer.shown.isText ? (
                // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by the keyboard
                <section className={`${classes.text} ${classes.code}`} tabIndex={0} aria-label={t('answer')}>
                  {answer.shown.text}
                </section>
              ) : (
                <Text c="dimmed">{t('request.binary')}</Text>
              ))}
          </Stack>
        </Card>
      )}
    </Stack>
  );
}
