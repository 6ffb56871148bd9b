import { Button, CopyButton, Group, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { asProblem, type Problem } from '../api/problems';
import { Notice } from './Notice';

const advised = new Set([0, 401, 403, 404, 409, 429, 500, 502, 503]);

/** Returns the text of a problem for a report to whoever runs the installation. */
export function reportOf(problem: Problem, page: string, at: Date): string {
  return [
    `${problem.title} (${problem.status || 'no answer'})`,
    problem.detail,
    `type: ${problem.type}`,
    `request: ${problem.requestId || '-'}`,
    `page: ${page}`,
    `time: ${at.toISOString()}`,
  ]
    .filter((line) => line !== '')
    .join('\n');
}

/** Tells what went wrong, what to do about it, and what to report. */
export function ProblemAlert({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const { t } = useTranslation('components');
  const problem = asProblem(error);
  const title = problem.type === 'about:offline' ? t('problem.offline') : problem.title;
  const fields = Object.entries(problem.fields);
  return (
    <Notice tone="bad" title={title} role="alert">
      {problem.detail !== '' && problem.detail !== title && <Text size="sm">{problem.detail}</Text>}
      {fields.map(([name, message]) => (
        <Text size="sm" key={name}>
          <b>{name}</b>: {message}
        </Text>
      ))}
      {advised.has(problem.status) && (
        <Text size="sm" c="dimmed">
          {t(`problem.advice.${problem.status}` as 'problem.advice.0')}
          {problem.retryAfter !== null && ` ${t('problem.retryAfter', { count: problem.retryAfter })}`}
        </Text>
      )}
      <Group gap="xs" mt="xs">
        {onRetry && (
          <Button size="xs" variant="default" onClick={onRetry}>
            {t('problem.retry')}
          </Button>
        )}
        <CopyButton value={reportOf(problem, window.location.href, new Date())}>
          {({ copied, copy }) => (
            <Button size="xs" variant="default" onClick={copy}>
              {copied ? t('copied') : t('problem.copyReport')}
            </Button>
          )}
        </CopyButton>
        {problem.requestId !== '' && (
          <Text size="xs" c="dimmed" ff="monospace">
            {problem.requestId}
          </Text>
        )}
      </Group>
    </Notice>
  );
}
