import {
  Button,
  Grid,
  Group,
  MultiSelect,
  NumberInput,
  SegmentedControl,
  Select,
  Stack,
  Text,
  Textarea,
  TextInput,
} from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useEffect, useMemo, useRef } from 'react';
import { useTranslation } from 'react-i18next';
import { useGroupSlots, useMountableFolders, useResourceGroups } from '../../../api/choices';
import { useUnlisted } from '../../../api/forms/unlisted';
import { useMe } from '../../../api/me';
import { asProblem } from '../../../api/problems';
import { Card } from '../../../components/Card';
import { Commands } from '../../../components/Commands';
import { MountFields } from '../../../components/MountFields';
import { Notice } from '../../../components/Notice';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { type Draft, draftOf, noUnlisted, searchOf } from '../draft';
import { Failed } from '../parts/Failed';
import { useTextFields } from '../parts/fields';
import { MoreOptions } from '../parts/MoreOptions';
import { PresetCards } from '../parts/PresetCards';
import { QuantityField } from '../parts/QuantityField';
import { VerdictLine } from '../parts/VerdictLine';
import { type Launched, useLaunch, useLaunchArray, useLaunchImages, useQuotas, useVerdict } from '../queries';
import { amountOf, arrayOf, bodyOf, faultsOf, isIndices, type Limits, refusalsOf, requestOf } from '../rules';
import classes from './LaunchPage.module.css';

const typingMs = 250;

function restOf(amounts: Record<string, string> | undefined, slot: string): number {
  const amount = amounts?.[slot];
  return amount === undefined || amount === 'Infinity' || amount === 'NaN' ? Number.POSITIVE_INFINITY : Number(amount);
}

function newToken(): string {
  return crypto.randomUUID();
}

/** Asks for a session: what, how much, with which data; the verdict of the scheduler stands beside it. */
export function LaunchPage() {
  const { t } = useTranslation('launch');
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const unlisted = useUnlisted(noUnlisted);
  const given = useMemo(() => draftOf(search, unlisted.values), [search, unlisted.values]);
  const me = useMe();
  const projects = (me.data?.user?.groups ?? []).filter((group) => group !== null);
  const project = given.project || projects[0]?.name || '';
  const groups = useResourceGroups(project);
  const group = given.group || groups.data?.[0] || '';
  const draft: Draft = { ...given, project, group };
  const change = (changes: Partial<Draft>) => {
    const next = { ...given, ...changes };
    const state = unlisted.keep({ env: next.env, bootstrap: next.bootstrap });
    void navigate({ to: '.', search: searchOf(next) as never, replace: true, state });
  };

  const images = useLaunchImages();
  const slots = useGroupSlots(group);
  const quotas = useQuotas(project, group);
  const folders = useMountableFolders();
  const [settled] = useDebouncedValue(JSON.stringify(draft), typingMs);
  const body = useMemo(() => bodyOf(JSON.parse(settled) as Draft), [settled]);
  const indices = arrayOf(draft);
  const isArray = indices !== '';
  const isWrongArray = isArray && !isIndices(indices);
  const verdict = useVerdict(body, isArray ? 1 : draft.count);
  const launch = useLaunch();
  const launchArray = useLaunchArray();
  const failure = launch.error ?? launchArray.error;
  const token = useRef(newToken());
  useEffect(() => {
    if (settled) token.current = newToken(); // another request is another launch
  }, [settled]);

  const names = (images.data ?? []).flatMap((image) => {
    const [alias] = (image.aliases ?? []).filter((name) => name !== null);
    return alias ?? (image.tag ? `${image.name}:${image.tag}` : (image.name ?? ''));
  });
  const together = draft.mode === 'single-node';
  const agentFree = verdict.data?.agents?.largest_free;
  const limitsOf = (slot: string): Limits => ({
    policy: Math.min(
      restOf(quotas.data?.keypair_remaining, slot),
      restOf(quotas.data?.group_remaining, slot),
      restOf(quotas.data?.domain_remaining, slot),
    ),
    group: restOf(quotas.data?.scaling_groups[group]?.remaining, slot),
    agent: restOf(agentFree, slot),
  });
  const ready = bodyOf(draft);
  // A refused launch says nothing about a request that has changed since.
  const refused = (launch.error ? launch.variables : launchArray.variables)?.body;
  const refusal = JSON.stringify(refused) === JSON.stringify(ready) ? failure : null;
  const problem = refusal ?? (body === null ? null : verdict.error);
  const refusals = problem === null ? {} : refusalsOf(asProblem(problem));
  const form = { draft, change, refusals };
  const field = useTextFields(form);
  const isFaulty = faultsOf(draft).length > 0;
  const submit = () => {
    if (ready === null || isWrongArray) return;
    if (isArray) {
      const onSuccess = () => void navigate({ to: '/sessions/arrays' });
      return launchArray.mutate({ body: ready, indices, token: token.current }, { onSuccess });
    }
    const onSuccess = (launched: readonly Launched[]) => {
      const [first] = launched;
      if (launched.length === 1 && first) void navigate({ to: '/sessions/$id', params: { id: first.id } as never });
      else void navigate({ to: '/sessions' });
    };
    launch.mutate({ body: ready, count: draft.count, token: token.current }, { onSuccess });
  };

  return (
    <Page title={t('title')}>
      {unlisted.isLost && <Notice tone="wait" role="status" title={t('lost')} />}
      <Grid gap="md">
        <Grid.Col span={{ base: 12, md: 8 }}>
          <Stack>
            <Card title={t('what.title')}>
              <Stack gap="sm">
                <Failed query={images} />
                <Select
                  label={t('what.image')}
                  searchable
                  data={[...new Set([...names, ...(draft.image ? [draft.image] : [])])]}
                  value={draft.image || null}
                  onChange={(image) => change({ image: image ?? '' })}
                  nothingFoundMessage={t('what.noImage')}
                  withAsterisk
                />
                <Group align="flex-end">
                  <SegmentedControl
                    aria-label={t('what.type')}
                    value={draft.type}
                    onChange={(type) => change({ type: type as Draft['type'] })}
                    data={[
                      { value: 'interactive', label: t('what.interactive') },
                      { value: 'batch', label: t('what.batch') },
                    ]}
                  />
                  <TextInput
                    label={t('what.name')}
                    placeholder={t('what.madeUp')}
                    value={draft.name}
                    onChange={(event) => change({ name: event.currentTarget.value })}
                  />
                </Group>
                {draft.type === 'batch' && (
                  <Textarea
                    label={t('what.command')}
                    value={draft.command}
                    onChange={(event) => change({ command: event.currentTarget.value })}
                    autosize
                    minRows={2}
                    withAsterisk
                  />
                )}
                {draft.type === 'batch' && (
                  <TextInput
                    label={t('what.array')}
                    description={t('what.arrayHint')}
                    placeholder="1-100%4"
                    value={draft.array}
                    autoComplete="off"
                    error={isWrongArray ? t('what.arrayMalformed') : null}
                    onChange={(event) => change({ array: event.currentTarget.value })}
                  />
                )}
                <Textarea
                  {...field('env')}
                  label={t('what.env')}
                  description={t('what.envHint')}
                  autosize
                  minRows={1}
                  maxRows={10}
                />
              </Stack>
            </Card>
            <Card title={t('where.title')}>
              <Failed query={me} />
              <Failed query={groups} />
              <Group>
                <Select
                  label={t('where.project')}
                  data={projects.map((each) => each.name ?? '')}
                  value={project || null}
                  onChange={(name) => change({ project: name ?? '', group: '' })}
                  allowDeselect={false}
                />
                <Select
                  label={t('where.group')}
                  data={groups.data ?? []}
                  value={group || null}
                  onChange={(name) => change({ group: name ?? '' })}
                  allowDeselect={false}
                />
              </Group>
            </Card>
            <Card title={t('much.title')}>
              <Stack gap="sm">
                <Failed query={quotas} />
                {(quotas.data?.presets ?? []).length > 0 && (
                  <PresetCards presets={quotas.data?.presets ?? []} draft={draft} onTake={change} />
                )}
                <Query query={slots} rows={3}>
                  {(details) => (
                    <>
                      {Object.values(details).map((slot) => (
                        <QuantityField
                          key={slot.slot_name}
                          slot={slot}
                          value={draft.amounts[slot.slot_name] ?? ''}
                          onChange={(amount) => change({ amounts: { ...given.amounts, [slot.slot_name]: amount } })}
                          limits={limitsOf(slot.slot_name)}
                          kernels={draft.size}
                          together={together}
                        />
                      ))}
                      {Object.entries(draft.amounts)
                        .filter(([slot, amount]) => !(slot in details) && amountOf(amount) > 0)
                        .map(([slot, amount]) => (
                          <Group key={slot} gap="xs" className={classes.lost}>
                            <Text size="sm">{t('much.lost', { slot, amount, group })}</Text>
                            <Button
                              size="compact-xs"
                              variant="default"
                              onClick={() => {
                                const { [slot]: _, ...amounts } = given.amounts;
                                change({ amounts });
                              }}
                            >
                              {t('much.drop')}
                            </Button>
                          </Group>
                        ))}
                    </>
                  )}
                </Query>
                <Textarea
                  {...field('devices')}
                  label={t('much.devices')}
                  description={t('much.devicesHint')}
                  placeholder="memory >= 40g"
                  autosize
                  minRows={1}
                />
                <Group align="flex-end">
                  <NumberInput
                    label={t('much.size')}
                    min={1}
                    max={1024}
                    value={draft.size}
                    onChange={(size) => change({ size: Number(size) || 1 })}
                    w={140}
                  />
                  <SegmentedControl
                    aria-label={t('much.mode')}
                    value={draft.mode}
                    onChange={(mode) => change({ mode: mode as Draft['mode'] })}
                    data={[
                      { value: 'single-node', label: t('much.single') },
                      { value: 'multi-node', label: t('much.multi') },
                    ]}
                  />
                  <NumberInput
                    label={t('much.count')}
                    min={1}
                    max={100}
                    value={isArray ? 1 : draft.count}
                    disabled={isArray}
                    description={isArray ? t('much.countOfArray') : undefined}
                    onChange={(count) => change({ count: Number(count) || 1 })}
                    w={140}
                  />
                </Group>
              </Stack>
            </Card>
            <Card title={t('data.title')}>
              <Failed query={folders} />
              <MultiSelect
                label={t('data.mounts')}
                searchable
                data={[...new Set([...(folders.data ?? []).map((folder) => folder.name), ...draft.mounts])]}
                value={draft.mounts}
                onChange={(mounts) => change({ mounts })}
                nothingFoundMessage={t('data.noFolder')}
                description={t('data.hint')}
                error={refusals.mounts}
              />
              <MountFields
                draft={draft}
                change={change}
                pathLabel={(name) => t('data.path', { name })}
                readOnlyLabel={(name) => t('data.readOnly', { name })}
              />
            </Card>
            <MoreOptions {...form} />
          </Stack>
        </Grid.Col>
        <Grid.Col span={{ base: 12, md: 4 }}>
          <div className={classes.summary}>
            <Card title={t('summary.title')}>
              <Stack gap="sm">
                {body === null && <Text c="dimmed">{isFaulty ? t('summary.faulty') : t('summary.incomplete')}</Text>}
                {body !== null && verdict.isError && <ProblemAlert error={verdict.error} />}
                {body !== null && !verdict.isError && verdict.data && (
                  <VerdictLine
                    explanation={verdict.data}
                    isStale={verdict.isFetching || verdict.isPlaceholderData}
                    onTake={(nearest) => change({ amounts: nearest.resources, size: nearest.cluster_size })}
                  />
                )}
                {isArray && body !== null && (
                  <Text size="sm" c="dimmed">
                    {t('summary.ofElement')}
                  </Text>
                )}
                {failure !== null && <ProblemAlert error={failure} />}
                <Button
                  onClick={submit}
                  loading={launch.isPending || launchArray.isPending}
                  aria-disabled={ready === null || isWrongArray}
                  data-disabled={ready === null || isWrongArray || undefined}
                >
                  {isArray || verdict.data?.verdict === 'waits' ? t('summary.enqueue') : t('summary.launch')}
                </Button>
                <Commands request={requestOf(draft)} />
              </Stack>
            </Card>
          </div>
        </Grid.Col>
      </Grid>
    </Page>
  );
}
export default LaunchPage;
