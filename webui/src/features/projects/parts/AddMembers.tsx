import { Button, Group, Stack, Text, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { addressesOf } from '../../../api/text';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { type Project, useChangeMembers } from '../queries';

/** Lets people of the domain into a project by their addresses. */
export function AddMembers({ project }: { project: Project }) {
  const { t } = useTranslation('projects');
  const change = useChangeMembers(project.id);
  const [text, setText] = useState('');
  const [isTouched, setTouched] = useState(false);
  const { emails, faulty } = addressesOf(text);
  const fault =
    faulty.length > 0 ? t('add.faulty', { words: faulty.join(', ') }) : emails.length === 0 ? t('add.empty') : null;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setTouched(true);
    if (fault !== null) return;
    change.mutate(
      { mode: 'add', emails },
      {
        onSuccess: () => {
          setText('');
          setTouched(false);
        },
      },
    );
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="xs">
        <TextInput
          label={t('add.emails')}
          description={t('add.emailsHint', { domain: project.domain })}
          value={text}
          autoComplete="off"
          error={isTouched && fault}
          onChange={(event) => setText(event.currentTarget.value)}
        />
        <Group>
          <Button type="submit" loading={change.isPending}>
            {t('add.submit')}
          </Button>
        </Group>
        {change.isError && <ProblemAlert error={change.error} />}
        {change.isSuccess && (
          <Text size="sm" role="status">
            {t('add.done', { count: change.variables.emails?.length ?? 0 })}
          </Text>
        )}
      </Stack>
    </form>
  );
}
