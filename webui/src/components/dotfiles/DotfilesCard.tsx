import { Button, Code, Group, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { type Dotfile, type DotfileOwner, useDeleteDotfile, useDotfiles, usePutDotfile } from '../../api/dotfiles';
import { asProblem } from '../../api/problems';
import { Card } from '../Card';
import { Confirm } from '../Confirm';
import { ProblemAlert } from '../ProblemAlert';
import { Query } from '../Query';
import { SimpleTable } from '../SimpleTable';

const monospace = { input: { fontFamily: 'var(--mantine-font-family-monospace)' } };
const fresh: Dotfile = { path: '', permission: '644', data: '' };

interface Props {
  owner: DotfileOwner;
  /** Whether the person changes them; others see them only. */
  mayChange: boolean;
}

/** Adds a dotfile, changes one, whose path stays, or only shows it. */
function DotfileForm({ owner, mayChange, file, onDone }: Props & { file: Dotfile; onDone: () => void }) {
  const { t } = useTranslation('dotfiles');
  const put = usePutDotfile(owner);
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
            label={t('path')}
            placeholder=".bashrc"
            required
            withAsterisk={false}
            readOnly={!isNew}
            value={path}
            error={fields.path}
            onChange={(event) => setPath(event.currentTarget.value)}
          />
          <TextInput
            label={t('permission')}
            required
            withAsterisk={false}
            readOnly={!mayChange}
            value={permission}
            error={fields.permission}
            onChange={(event) => setPermission(event.currentTarget.value)}
          />
        </Group>
        <Textarea
          label={t('data')}
          rows={8}
          resize="vertical"
          spellCheck={false}
          styles={monospace}
          readOnly={!mayChange}
          value={data}
          error={fields.data}
          onChange={(event) => setData(event.currentTarget.value)}
        />
        {put.isError && <ProblemAlert error={put.error} />}
        <Group gap="xs">
          {mayChange && (
            <Button type="submit" variant="default" loading={put.isPending}>
              {t('save')}
            </Button>
          )}
          <Button variant="subtle" onClick={onDone}>
            {t(mayChange ? 'cancel' : 'close')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

/** The dotfiles of a person, a project or a domain: what each new session has in its home. */
export function DotfilesCard({ owner, mayChange }: Props) {
  const { t } = useTranslation('dotfiles');
  const remove = useDeleteDotfile(owner);
  const [opened, setOpened] = useState<Dotfile | null>(null);
  const [doomed, setDoomed] = useState<string | null>(null);
  return (
    <Card title={t('title')}>
      <Stack gap="sm">
        <Text size="sm">
          {t(`means.${owner.scope}`)} {owner.scope !== 'user' && t('spared')}
        </Text>
        <Query query={useDotfiles(owner)}>
          {(files) => (
            <SimpleTable
              label={t('title')}
              rows={files}
              idOf={(file) => file.path}
              minWidth={320}
              columns={[
                { label: t('path'), cell: (file) => <Code>{file.path}</Code> },
                { label: t('permission'), cell: (file) => file.permission },
                {
                  label: t('action'),
                  cell: (file) => (
                    <Group gap={4} wrap="nowrap">
                      <Button
                        size="compact-xs"
                        variant="default"
                        aria-label={t(mayChange ? 'editOf' : 'showOf', { path: file.path })}
                        onClick={() => setOpened(file)}
                      >
                        {t(mayChange ? 'edit' : 'show')}
                      </Button>
                      {mayChange && (
                        <Button
                          size="compact-xs"
                          variant="default"
                          aria-label={t('deleteOf', { path: file.path })}
                          onClick={() => setDoomed(file.path)}
                        >
                          {t('delete')}
                        </Button>
                      )}
                    </Group>
                  ),
                },
              ]}
            />
          )}
        </Query>
        {opened !== null && (
          <DotfileForm
            key={opened.path}
            owner={owner}
            mayChange={mayChange}
            file={opened}
            onDone={() => setOpened(null)}
          />
        )}
        {opened === null && mayChange && (
          <Group>
            <Button variant="default" onClick={() => setOpened(fresh)}>
              {t('add')}
            </Button>
          </Group>
        )}
      </Stack>
      <Confirm
        isOpen={doomed !== null}
        title={t('confirm', { path: doomed ?? '' })}
        action={t('delete')}
        isBusy={remove.isPending}
        error={remove.error}
        onConfirm={() => remove.mutate(doomed ?? '', { onSuccess: () => setDoomed(null) })}
        onClose={() => {
          remove.reset();
          setDoomed(null);
        }}
      >
        <Text>{t('loses')}</Text>
      </Confirm>
    </Card>
  );
}
