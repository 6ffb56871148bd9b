import { Button, Group, NativeSelect, Progress, SimpleGrid, Stack, Text, TextInput } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { bytesOf } from '../../../api/amounts';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { EmptyState } from '../../../components/EmptyState';
import { Facts } from '../../../components/Facts';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { formatBytes, formatNumber } from '../../../i18n/format';
import { FolderTypesCard } from '../parts/FolderTypesCard';
import { MountsCard } from '../parts/MountsCard';
import { type OwnScope, useQuotaScope, useSetQuota, useStorage } from '../queries';
import { countersOf, isOfBytes, percentOf, usageOf } from '../rules';

/** Asks which project is meant where several domains have one of the name. */
function ScopeChoice({ host, owner, scopes }: { host: string; owner: string; scopes: readonly OwnScope[] }) {
  const { t } = useTranslation('operations');
  return (
    <Stack gap="xs">
      <Text size="sm">{t('storage.several', { owner })}</Text>
      {scopes.map(({ scope, domain }) => (
        <AnchorLink key={scope} to="/storage" search={{ host, owner: scope }} size="sm">
          {t('storage.ofDomain', { owner, domain })}
        </AnchorLink>
      ))}
    </Stack>
  );
}

function Quota({ host, owner }: { host: string; owner: string }) {
  const { t, i18n } = useTranslation('operations');
  const query = useQuotaScope(host, owner);
  const change = useSetQuota();
  const [limit, setLimit] = useState('');
  const bytes = bytesOf(limit);
  const bytesText = (value: number | null | undefined) =>
    value === null || value === undefined ? '∞' : formatBytes(value, i18n.language);
  return (
    <Query query={query}>
      {(found) => {
        const { scopes, details } = found;
        const [first] = scopes;
        if (first === undefined) return <EmptyState title={t('storage.nobody', { owner })} />;
        if (scopes.length > 1) return <ScopeChoice host={host} owner={owner} scopes={scopes} />;
        const { scope, domain } = first;
        const submit = (event: FormEvent) => {
          event.preventDefault();
          if (bytes !== null) change.mutate({ host, scope, bytes }, { onSuccess: () => setLimit('') });
        };
        return (
          <Stack gap="sm">
            <Facts
              rows={[
                [t('storage.scope'), scope],
                ...(domain === null ? [] : [[t('storage.domain'), domain] as const]),
                [t('storage.used'), bytesText(details?.usage_bytes ?? 0)],
                [t('storage.files'), details?.usage_count ?? '–'],
                [t('storage.limit'), bytesText(details?.hard_limit_bytes)],
                [t('storage.enforcement'), details?.enforcement],
              ]}
            />
            <form onSubmit={submit}>
              <Group align="end" gap="xs">
                <TextInput
                  label={t('storage.newLimit')}
                  description={t('storage.newLimitHint')}
                  placeholder="20g"
                  required
                  withAsterisk={false}
                  value={limit}
                  error={limit !== '' && bytes === null ? t('storage.noAmount') : undefined}
                  onChange={(event) => setLimit(event.currentTarget.value)}
                />
                <Button type="submit" variant="default" disabled={bytes === null} loading={change.isPending}>
                  {t('storage.set')}
                </Button>
                <Button
                  variant="default"
                  loading={change.isPending}
                  onClick={() => change.mutate({ host, scope, bytes: null })}
                >
                  {t('storage.unset')}
                </Button>
              </Group>
            </form>
            {change.isError && <ProblemAlert error={change.error} />}
          </Stack>
        );
      }}
    </Query>
  );
}

/** The storage hosts, how full they are, and the limits of users and projects on them. */
export function StoragePage() {
  const { t, i18n } = useTranslation('operations');
  const { host = '', owner = '' } = useSearch({ from: '/shell/storage' });
  const navigate = useNavigate();
  const query = useStorage();
  const [typed, setTyped] = useState(owner);
  return (
    <Page title={t('storage.title')}>
      <Query query={query}>
        {(volumes) => {
          if (volumes.length === 0) return <EmptyState title={t('storage.none')}>{t('storage.noneHint')}</EmptyState>;
          const chosen = host || volumes[0]?.id || '';
          const submit = (event: FormEvent) => {
            event.preventDefault();
            void navigate({ to: '/storage', search: { host: chosen, owner: typed.trim() } });
          };
          return (
            <Stack>
              <SimpleGrid cols={{ base: 1, lg: 2 }}>
                {volumes.map((volume) => {
                  const usage = usageOf(volume.usage);
                  return (
                    <Card key={volume.id} title={volume.id ?? ''}>
                      <Stack gap="xs">
                        {usage === null ? (
                          <Text c="dimmed">{t('storage.unmeasured')}</Text>
                        ) : (
                          <>
                            <Text size="sm">
                              {t('storage.full', {
                                used: formatBytes(usage.used, i18n.language),
                                capacity: formatBytes(usage.capacity, i18n.language),
                                percent: percentOf(usage.used, usage.capacity),
                              })}
                            </Text>
                            <Progress
                              value={percentOf(usage.used, usage.capacity)}
                              aria-label={t('storage.fullness', { name: volume.id })}
                            />
                          </>
                        )}
                        <Facts
                          rows={[
                            [t('storage.backend'), volume.backend],
                            [t('storage.path'), volume.path],
                            [t('storage.capabilities'), (volume.capabilities ?? []).join(', ')],
                            ...countersOf(volume.performance_metric).map(
                              ({ name, value }) =>
                                [
                                  t(`storage.counter.${name}`),
                                  (isOfBytes(name) ? formatBytes : formatNumber)(value, i18n.language),
                                ] as const,
                            ),
                          ]}
                        />
                      </Stack>
                    </Card>
                  );
                })}
              </SimpleGrid>
              <FolderTypesCard />
              <MountsCard />
              <Card title={t('storage.quotas')}>
                <Stack>
                  <form onSubmit={submit}>
                    <Group align="end" gap="xs">
                      <NativeSelect
                        label={t('storage.host')}
                        data={volumes.map((volume) => volume.id ?? '')}
                        value={chosen}
                        onChange={(event) =>
                          void navigate({
                            to: '/storage',
                            search: { host: event.currentTarget.value, ...(owner ? { owner } : {}) },
                          })
                        }
                      />
                      <TextInput
                        label={t('storage.owner')}
                        required
                        withAsterisk={false}
                        value={typed}
                        onChange={(event) => setTyped(event.currentTarget.value)}
                      />
                      <Button type="submit" variant="default">
                        {t('storage.show')}
                      </Button>
                    </Group>
                  </form>
                  {owner !== '' && <Quota key={`${chosen} ${owner}`} host={chosen} owner={owner} />}
                </Stack>
              </Card>
            </Stack>
          );
        }}
      </Query>
    </Page>
  );
}
export default gated(['superadmin'], StoragePage);
