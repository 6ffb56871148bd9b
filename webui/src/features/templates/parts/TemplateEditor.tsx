import { Button, Group, Stack, Text, Textarea } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';

/** Edits the text of a template; the manager says at which place a text cannot be read, and the text stays. */
export function TemplateEditor({
  text,
  action,
  isReadOnly = false,
  save,
}: {
  text: string;
  action: string;
  isReadOnly?: boolean;
  save: {
    mutate: (payload: string) => void;
    isPending: boolean;
    isSuccess: boolean;
    error: unknown;
  };
}) {
  const { t } = useTranslation('templates');
  const [draft, setDraft] = useState(text);
  const problem = save.error === null ? null : asProblem(save.error);
  const place = problem?.fields.payload;
  return (
    <Stack gap="sm">
      <Textarea
        label={t('text')}
        description={t('textHint')}
        rows={14}
        resize="vertical"
        spellCheck={false}
        readOnly={isReadOnly}
        value={draft}
        error={place}
        styles={{ input: { fontFamily: 'var(--mantine-font-family-monospace)' } }}
        onChange={(event) => setDraft(event.currentTarget.value)}
      />
      {problem !== null && place === undefined && <ProblemAlert error={problem} />}
      {save.isSuccess && draft === text && <Notice tone="good" role="status" title={t('saved')} />}
      {isReadOnly ? (
        <Text size="sm" c="dimmed">
          {t('readOnly')}
        </Text>
      ) : (
        <Group>
          <Button variant="default" loading={save.isPending} onClick={() => save.mutate(draft)}>
            {action}
          </Button>
        </Group>
      )}
    </Stack>
  );
}
