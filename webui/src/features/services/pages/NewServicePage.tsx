import { Button, Checkbox, Grid, Group, NumberInput, Select, Stack, Text, TextInput } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useEffect, useMemo, useRef, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useResourceGroups } from '../../../api/choices';
import { useUnlisted } from '../../../api/forms/unlisted';
import { useMe } from '../../../api/me';
import { Card } from '../../../components/Card';
import { Notice } from '../../../components/Notice';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { mostReplicas, noUnlisted, type ServiceDraft, serviceDraftOf, serviceSearchOf } from '../draft';
import { Line } from '../parts/Line';
import { MoreOptions } from '../parts/MoreOptions';
import { SlotFields } from '../parts/SlotFields';
import { TrialLine } from '../parts/TrialLine';
import { useCreateService, useModelFolders, useRuntimeVariants, useServedImages, useTry } from '../queries';
import { bodyOf, commandOf, type FieldName, faultsOf, fieldErrorsOf, imageName } from '../rules';
import classes from './NewServicePage.module.css';

/** Asks for a service: what it serves, how it is started, with how much; a trial tells whether it can be served. */
export function NewServicePage() {
  const { t } = useTranslation('services');
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const unlisted = useUnlisted(noUnlisted);
  const given = useMemo(() => serviceDraftOf(search, unlisted.values), [search, unlisted.values]);
  const me = useMe();
  const projects = (me.data?.user?.groups ?? []).flatMap((group) => group?.name ?? []);
  const project = given.project || projects[0] || '';
  const groups = useResourceGroups(project);
  const draft: ServiceDraft = { ...given, project, group: given.group || groups.data?.[0] || '' };

  const folders = useModelFolders();
  const images = useServedImages();
  const variants = useRuntimeVariants();
  const create = useCreateService();
  const trial = useTry();
  const [changed, setChanged] = useState<ReadonlySet<FieldName>>(new Set());
  const asked = useRef('');
  const text = JSON.stringify(given);
  const token = useRef(crypto.randomUUID());
  useEffect(() => {
    if (text) token.current = crypto.randomUUID(); // another request is another service
  }, [text]);

  const change = (changes: Partial<ServiceDraft>) => {
    setChanged((before) => new Set([...before, ...(Object.keys(changes) as FieldName[])]));
    const next = { ...given, ...changes };
    void navigate({
      to: '.',
      search: serviceSearchOf(next) as never,
      replace: true,
      state: unlisted.keep({ env: next.env }),
      resetScroll: false,
    });
  };
  const error = create.error ?? trial.error;
  const errors = fieldErrorsOf(error);
  // What was wrong with a field is told until the field is changed.
  const errorOf = (field: FieldName) => (changed.has(field) ? undefined : errors[field]);
  const body = bodyOf(draft);
  const ask = (act: (request: NonNullable<typeof body>) => void) => {
    if (body === null) return;
    create.reset();
    trial.reset();
    setChanged(new Set());
    asked.current = JSON.stringify(body);
    act(body);
  };
  const imageNames = (images.data ?? []).map(imageName);
  const folderNames = (folders.data ?? []).map((folder) => folder.name);
  const withChosen = (names: readonly string[], chosen: string) => [
    ...new Set([...names, ...(chosen === '' ? [] : [chosen])]),
  ];
  const failed = [folders, images, variants, groups].find((query) => query.isError);
  return (
    <Page title={t('create.title')}>
      {unlisted.isLost && <Notice tone="wait" role="status" title={t('create.lost')} />}
      {failed && <ProblemAlert error={failed.error} onRetry={() => void failed.refetch()} />}
      <Grid gap="md">
        <Grid.Col span={{ base: 12, md: 8 }}>
          <Stack>
            <Card title={t('create.what')}>
              <Stack gap="sm">
                <TextInput
                  label={t('create.name')}
                  description={t('create.nameHint')}
                  value={draft.name}
                  maxLength={48}
                  autoComplete="off"
                  withAsterisk
                  error={errorOf('name')}
                  onChange={(event) => change({ name: event.currentTarget.value })}
                />
                <Select
                  label={t('create.model')}
                  description={t('create.modelHint')}
                  searchable
                  data={withChosen(folderNames, draft.model)}
                  value={draft.model || null}
                  nothingFoundMessage={t('create.noFolder')}
                  withAsterisk
                  error={errorOf('model')}
                  onChange={(model) => change({ model: model ?? '' })}
                />
                <TextInput
                  label={t('fact.definition')}
                  placeholder="model-definition.yaml"
                  description={t('create.definitionHint')}
                  value={draft.definition}
                  autoComplete="off"
                  error={errorOf('definition')}
                  onChange={(event) => change({ definition: event.currentTarget.value })}
                />
              </Stack>
            </Card>
            <Card title={t('create.how')}>
              <Stack gap="sm">
                <Select
                  label={t('fact.image')}
                  searchable
                  data={withChosen(imageNames, draft.image)}
                  value={draft.image || null}
                  nothingFoundMessage={t('create.noImage')}
                  withAsterisk
                  error={errorOf('image')}
                  onChange={(image) => change({ image: image ?? '' })}
                />
                <Select
                  label={t('fact.variant')}
                  description={t('create.variantHint')}
                  data={[
                    ...(variants.data ?? []).map(({ name, title }) => ({ value: name, label: title })),
                    ...((variants.data ?? []).some(({ name }) => name === draft.variant)
                      ? []
                      : [{ value: draft.variant, label: draft.variant }]),
                  ]}
                  value={draft.variant}
                  allowDeselect={false}
                  error={errorOf('variant')}
                  onChange={(variant) => change({ variant: variant ?? 'custom' })}
                />
                <TextInput
                  label={t('create.command')}
                  description={t('create.commandHint')}
                  value={draft.command}
                  autoComplete="off"
                  error={errorOf('command')}
                  onChange={(event) => change({ command: event.currentTarget.value })}
                />
              </Stack>
            </Card>
            <Card title={t('create.where')}>
              <Stack gap="sm">
                <Group align="flex-start">
                  <Select
                    label={t('fact.project')}
                    data={withChosen(projects, project)}
                    value={project || null}
                    allowDeselect={false}
                    error={errorOf('project')}
                    onChange={(name) => change({ project: name ?? '', group: '' })}
                  />
                  <Select
                    label={t('fact.group')}
                    data={withChosen(groups.data ?? [], draft.group)}
                    value={draft.group || null}
                    allowDeselect={false}
                    error={errorOf('group')}
                    onChange={(name) => change({ group: name ?? '' })}
                  />
                  <NumberInput
                    label={t('scale.count')}
                    min={0}
                    max={mostReplicas}
                    allowDecimal={false}
                    w={140}
                    value={draft.replicas}
                    error={errorOf('replicas')}
                    onChange={(count) => change({ replicas: typeof count === 'number' ? count : 1 })}
                  />
                </Group>
                <SlotFields group={draft.group} amounts={draft.amounts} onChange={(amounts) => change({ amounts })} />
                {errorOf('amounts') && (
                  <Text size="sm" c="var(--app-bad)" role="alert">
                    {errorOf('amounts')}
                  </Text>
                )}
                <Checkbox
                  label={t('create.public')}
                  description={t('create.publicHint')}
                  checked={draft.isPublic}
                  error={errorOf('isPublic')}
                  onChange={(event) => change({ isPublic: event.currentTarget.checked })}
                />
              </Stack>
            </Card>
            <MoreOptions draft={draft} change={change} errorOf={errorOf} />
          </Stack>
        </Grid.Col>
        <Grid.Col span={{ base: 12, md: 4 }}>
          <div className={classes.summary}>
            <Card title={t('create.summary')}>
              <Stack gap="sm">
                {body === null && (
                  <Text c="dimmed">{faultsOf(draft).length > 0 ? t('create.faulty') : t('create.incomplete')}</Text>
                )}
                {error && <ProblemAlert error={error} />}
                {trial.data && (
                  <>
                    <TrialLine taskId={trial.data} />
                    {asked.current !== JSON.stringify(body) && <Text size="sm">{t('trial.changed')}</Text>}
                  </>
                )}
                <Button
                  loading={create.isPending}
                  aria-disabled={body === null}
                  data-disabled={body === null || undefined}
                  onClick={() =>
                    ask((request) =>
                      create.mutate(
                        { body: request, token: token.current },
                        {
                          onSuccess: (made) => void navigate({ to: '/services/$id', params: { id: made.endpoint_id } }),
                        },
                      ),
                    )
                  }
                >
                  {t('create.action')}
                </Button>
                <Button
                  variant="default"
                  loading={trial.isPending}
                  aria-disabled={body === null}
                  data-disabled={body === null || undefined}
                  onClick={() => ask((request) => trial.mutate(request))}
                >
                  {t('trial.open')}
                </Button>
                <Text size="sm" c="dimmed">
                  {t('trial.hint')}
                </Text>
                <Line text={commandOf(draft)} label={t('create.copy')} />
              </Stack>
            </Card>
          </div>
        </Grid.Col>
      </Grid>
    </Page>
  );
}
export default NewServicePage;
