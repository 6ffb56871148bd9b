import { Button, Code, Group, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import {
  type Dotfile,
  useBootstrapScript,
  useDeleteDotfile,
  useDotfiles,
  usePutDotfile,
  useSetBootstrapScript,
} from '../queries';

const monospace = { input: { fontFamily: 'var(--mantine-font-family-monospace)' } };
const fresh: Dotfile = { path: '', permission: '644', data: '' };

/** Adds a dotfile or changes one; the path of one that is there stays. */
function DotfileForm({ file, onDone }: { file: Dotfile; onDone: () => void }) {
  const { t } = useTranslation('account');
  const put = usePutDotfile();
  const [path, setPath] = useState(file.path);
  const [permission, setPermission] = useState(file.permission);
  const [data, setData] = useState(file.data);
  const isNew = file.path === '';
  const submit = (event: FormEvent) => {
    event.preventDefault();
    put.mutate({ file: { path: path.trim(), permission, data }, isNew }, { onSuccess: onDone });
  };
  const fields = put.isError ? asProblem(put.error).fields : {};
  return (
    <form onSubmit={submit}>
      <Stack gap="sm">
        <Group grow align="start">
          <TextInput
            label={t('dotfiles.path')}
            placeholder=".bashrc"
            required
            withAsterisk={false}
            readOnly={!isNew}
            value={path}
            error={fields.path}
            onChange={(event) => setPath(event.currentTarget.value)}
          />
          <TextInput
            label={t('dotfiles.permission')}
            required
            withAsterisk={false}
            value={permission}
            error={fields.permission}
            onChange={(event) => setPermission(event.currentTarget.value)}
          />
        </Group>
        <Textarea
          label={t('dotfiles.data')}
          rows={8}
          resize="vertical"
          spellCheck={false}
          styles={monospace}
          value={data}
          error={fields.data}
          onChange={(event) => setData(event.currentTarget.value)}
        />
        {put.isError && <ProblemAlert error={put.error} />}
        <Group gap="xs">
          <Button type="submit" variant="default" loading={put.isPending}>
            {t('dotfiles.save')}
          </Button>
          <Button variant="subtle" onClick={onDone}>
            {t('dotfiles.cancel')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

function Dotfiles() {
  const { t } = useTranslation('account');
  const remove = useDeleteDotfile();
  const [edited, setEdited] = useState<Dotfile | null>(null);
  const [doomed, setDoomed] = useState<string | null>(null);
  return (
    <Card title={t('dotfiles.title')}>
      <Stack gap="sm">
        <Text size="sm">{t('dotfiles.means')}</Text>
        <Query query={useDotfiles()}>
          {(files) => (
            <SimpleTable
              label={t('dotfiles.title')}
              rows={files}
              idOf={(file) => file.path}
              minWidth={320}
              columns={[
                { label: t('dotfiles.path'), cell: (file) => <Code>{file.path}</Code> },
                { label: t('dotfiles.permission'), cell: (file) => file.permission },
                {
                  label: t('logins.action'),
                  cell: (file) => (
                    <Group gap={4} wrap="nowrap">
                      <Button
                        size="compact-xs"
                        variant="default"
                        aria-label={t('dotfiles.editOf', { path: file.path })}
                        onClick={() => setEdited(file)}
                      >
                        {t('dotfiles.edit')}
                      </Button>
                      <Button
                        size="compact-xs"
                        variant="default"
                        aria-label={t('dotfiles.deleteOf', { path: file.path })}
                        onClick={() => setDoomed(file.path)}
                      >
                        {t('dotfiles.delete')}
                      </Button>
                    </Group>
                  ),
                },
              ]}
            />
          )}
        </Query>
        {edited === null ? (
          <Group>
            <Button variant="default" onClick={() => setEdited(fresh)}>
              {t('dotfiles.add')}
            </Button>
          </Group>
        ) : (
          <DotfileForm key={edited.path} file={edited} onDone={() => setEdited(null)} />
        )}
      </Stack>
      <Confirm
        isOpen={doomed !== null}
        title={t('dotfiles.confirm', { path: doomed ?? '' })}
        action={t('dotfiles.delete')}
        isBusy={remove.isPending}
        error={remove.error}
        onConfirm={() => remove.mutate(doomed ?? '', { onSuccess: () => setDoomed(null) })}
        onClose={() => {
          remove.reset();
          setDoomed(null);
        }}
      >
        <Text>{t('dotfiles.loses')}</Text>
      </Confirm>
    </Card>
  );
}

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
      <Dotfiles />
      <Card title={t('script.title')}>
        <Query query={useBootstrapScript()}>{(script) => <ScriptForm script={script} />}</Query>
      </Card>
    </>
  );
}
