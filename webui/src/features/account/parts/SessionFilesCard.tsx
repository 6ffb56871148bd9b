import { Button, Group, Stack, Textarea } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { DotfilesCard } from '../../../components/dotfiles/DotfilesCard';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { useBootstrapScript, useSetBootstrapScript } from '../queries';

const monospace = { input: { fontFamily: 'var(--mantine-font-family-monospace)' } };

function ScriptForm({ script }: { script: string }) {
  const { t } = useTranslation('account');
  const save = useSetBootstrapScript();
  const [draft, setDraft] = useState(script);
  return (
    <Stack gap="sm">
      <Textarea
        label={t('script.label')}
        description={t('script.means')}
        placeholder="#!/bin/sh"
        rows={8}
        resize="vertical"
        spellCheck={false}
        styles={monospace}
        value={draft}
        onChange={(event) => setDraft(event.currentTarget.value)}
      />
      {save.isError && <ProblemAlert error={save.error} />}
      {save.isSuccess && draft === script && <Notice tone="good" role="status" title={t('script.saved')} />}
      <Group>
        <Button variant="default" loading={save.isPending} onClick={() => save.mutate(draft)}>
          {t('script.save')}
        </Button>
      </Group>
    </Stack>
  );
}

/** What each new session of the person begins with: dotfiles, and a script that runs first. */
export function SessionFilesCard() {
  const { t } = useTranslation('account');
  return (
    <>
      <DotfilesCard owner={{ scope: 'user' }} mayChange />
      <Card title={t('script.title')}>
        <Query query={useBootstrapScript()}>{(script) => <ScriptForm script={script} />}</Query>
      </Card>
    </>
  );
}
