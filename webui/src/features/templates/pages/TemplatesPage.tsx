import { Button, Group, SegmentedControl, Stack, Switch, Text } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { StartDialog } from '../parts/StartDialog';
import { TemplateEditor } from '../parts/TemplateEditor';
import {
  type TemplateRow,
  useCreateTemplate,
  useDeleteTemplate,
  useReplaceTemplate,
  useStartFrom,
  useTemplates,
  useTemplateText,
} from '../queries';
import { type Kind, samples } from '../rules';

const newId = 'new';

/** A template that is stored: its text, to be changed by its owner. */
function StoredTemplate({ kind, template }: { kind: Kind; template: TemplateRow }) {
  const { t } = useTranslation('templates');
  const replace = useReplaceTemplate(kind, template.id);
  return (
    <Card title={template.name}>
      <Query query={useTemplateText(kind, template.id)}>
        {(text) => (
          <TemplateEditor key={text} text={text} action={t('save')} isReadOnly={!template.is_owner} save={replace} />
        )}
      </Query>
    </Card>
  );
}

function NewTemplate({ kind }: { kind: Kind }) {
  const { t } = useTranslation('templates');
  const navigate = useNavigate();
  const create = useCreateTemplate(kind);
  const save = {
    isPending: create.isPending,
    isSuccess: false,
    error: create.error,
    mutate: (payload: string) =>
      create.mutate(payload, {
        onSuccess: (id) =>
          void navigate({ to: '/templates', search: (before) => ({ ...before, show: id ?? '' }), replace: true }),
      }),
  };
  return (
    <Card title={t('new')}>
      <TemplateEditor text={samples[kind]} action={t('create')} save={save} />
    </Card>
  );
}

/** Templates of sessions: kept texts that sessions start from. */
export function TemplatesPage() {
  const { t } = useTranslation('templates');
  const { kind = 'session', show = '', all = false } = useSearch({ from: '/shell/templates' });
  const navigate = useNavigate();
  const query = useTemplates(kind, all);
  const start = useStartFrom(kind);
  const remove = useDeleteTemplate(kind);
  const [doomed, setDoomed] = useState<TemplateRow | null>(null);
  const [chosen, setChosen] = useState<TemplateRow | null>(null);
  const go = (search: { kind?: Kind; show?: string; all?: boolean }) =>
    void navigate({ to: '/templates', search: (before) => ({ ...before, ...search }) });
  const launch = (id: string) =>
    start.mutate(
      { id, token: crypto.randomUUID() },
      { onSuccess: (session) => void navigate({ to: '/sessions/$id', params: { id: session } }) },
    );
  return (
    <Page
      title={t('title')}
      actions={
        <Button variant="default" onClick={() => go({ show: newId })}>
          {t('new')}
        </Button>
      }
    >
      <Group>
        <SegmentedControl
          aria-label={t('kind')}
          data={[
            { value: 'session', label: t('kinds.session') },
            { value: 'cluster', label: t('kinds.cluster') },
          ]}
          value={kind}
          onChange={(value) => go({ kind: value === 'cluster' ? 'cluster' : 'session', show: '' })}
        />
        <Switch label={t('ofOthers')} checked={all} onChange={(event) => go({ all: event.currentTarget.checked })} />
      </Group>
      {start.isError && <ProblemAlert error={start.error} />}
      <Query query={query}>
        {(templates) => {
          const shown = templates.find(({ id }) => id === show);
          return (
            <Stack>
              {templates.length === 0 ? (
                <EmptyState title={t('none')}>{t('noneHint')}</EmptyState>
              ) : (
                <SimpleTable
                  label={t('title')}
                  rows={templates}
                  idOf={(row) => row.id}
                  minWidth={720}
                  columns={[
                    {
                      label: t('column.name'),
                      cell: (row) => (
                        <AnchorLink to="/templates" search={(before) => ({ ...before, show: row.id })}>
                          {row.name}
                        </AnchorLink>
                      ),
                    },
                    { label: t('column.owner'), cell: (row) => row.user_email ?? '–' },
                    { label: t('column.project'), cell: (row) => `${row.domain_name} / ${row.group_name ?? '–'}` },
                    { label: t('column.created'), cell: (row) => <RelativeTime at={row.created_at} /> },
                    {
                      label: t('column.action'),
                      cell: (row) => (
                        <Group gap={4} wrap="nowrap">
                          <Button
                            size="compact-xs"
                            disabled={start.isPending}
                            aria-label={t('startOf', { name: row.name })}
                            onClick={() => launch(row.id)}
                          >
                            {t('start')}
                          </Button>
                          <Button
                            size="compact-xs"
                            variant="default"
                            aria-label={t('startWithOf', { name: row.name })}
                            onClick={() => setChosen(row)}
                          >
                            {t('startWith')}
                          </Button>
                          {row.is_owner && (
                            <Button
                              size="compact-xs"
                              variant="default"
                              aria-label={t('deleteOf', { name: row.name })}
                              onClick={() => setDoomed(row)}
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
              {show === newId && <NewTemplate key={kind} kind={kind} />}
              {shown && <StoredTemplate key={shown.id} kind={kind} template={shown} />}
            </Stack>
          );
        }}
      </Query>
      {chosen !== null && <StartDialog key={chosen.id} kind={kind} template={chosen} onClose={() => setChosen(null)} />}
      <Confirm
        isOpen={doomed !== null}
        title={t('confirm', { name: doomed?.name ?? '' })}
        action={t('delete')}
        isBusy={remove.isPending}
        error={remove.error}
        onConfirm={() => remove.mutate(doomed?.id ?? '', { onSuccess: () => setDoomed(null) })}
        onClose={() => {
          remove.reset();
          setDoomed(null);
        }}
      >
        <Text>{t('means')}</Text>
      </Confirm>
    </Page>
  );
}
export default TemplatesPage;
