import { ActionIcon, Button, Group, Paper, Progress, Stack, Text } from '@mantine/core';
import { IconX } from '@tabler/icons-react';
import { useTranslation } from 'react-i18next';
import { formatBytes } from '../../../i18n/format';
import type { UploadItem, UploadQueue } from '../uploads';

/** Uploads of this folder with their progress. */
export function UploadList({ items, queue }: { items: readonly UploadItem[]; queue: UploadQueue }) {
  const { t, i18n } = useTranslation('folders');
  if (items.length === 0) return null;
  const done = items.filter((item) => item.state === 'done').length;
  return (
    <Paper withBorder p="md" component="section" aria-label={t('uploads.title')}>
      <Stack gap="xs">
        <Group justify="space-between">
          <Text role="status">{t('uploads.progress', { done, count: items.length })}</Text>
          {done > 0 && (
            <Button size="xs" variant="default" onClick={() => queue.clearDone()}>
              {t('uploads.clear')}
            </Button>
          )}
        </Group>
        {items.map((item) => (
          <div key={item.id}>
            <Group justify="space-between" wrap="nowrap" gap="xs">
              <Text size="sm" truncate title={item.name}>
                {item.name}
              </Text>
              <Group gap="xs" wrap="nowrap">
                <Text size="sm" c="dimmed">
                  {item.state === 'done'
                    ? t('uploads.done')
                    : `${formatBytes(item.sent, i18n.language)} / ${formatBytes(item.size, i18n.language)}`}
                </Text>
                {item.state === 'failed' && (
                  <Button size="xs" onClick={() => queue.retry(item.id)}>
                    {t('uploads.retry')}
                  </Button>
                )}
                {item.state !== 'done' && (
                  <ActionIcon
                    variant="subtle"
                    color="gray"
                    onClick={() => queue.cancel(item.id)}
                    aria-label={t('uploads.cancel', { name: item.name })}
                  >
                    <IconX size={16} aria-hidden />
                  </ActionIcon>
                )}
              </Group>
            </Group>
            {item.state !== 'done' && (
              <Progress
                value={item.size === 0 ? 0 : (100 * item.sent) / item.size}
                aria-label={t('uploads.of', { name: item.name })}
              />
            )}
            {item.problem && (
              <Text size="sm" c="var(--app-bad)" role="alert">
                {item.problem.detail || item.problem.title}
              </Text>
            )}
          </div>
        ))}
      </Stack>
    </Paper>
  );
}
