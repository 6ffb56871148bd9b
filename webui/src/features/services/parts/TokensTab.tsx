import { Button, Group, Stack, Text, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { Card } from '../../../components/Card';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { type ServiceDetails, tokensPageSize, useNewToken, useServiceTokens } from '../queries';
import { callOf, isLive } from '../rules';
import { Line } from './Line';

function NewToken({ service }: { service: ServiceDetails }) {
  const { t } = useTranslation('services');
  const [duration, setDuration] = useState('1d');
  const create = useNewToken(service.endpoint_id);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate(duration.trim());
  };
  const url = service.service_endpoint;
  if (url === null) return <Text c="dimmed">{t('call.notYet')}</Text>;
  const problem = create.isError ? asProblem(create.error) : null;
  const token = create.data?.token;
  return (
    <Stack gap="sm">
      <form onSubmit={submit}>
        <Group align="flex-start">
          <TextInput
            label={t('token.duration')}
            description={t('token.durationHint')}
            value={duration}
            required
            withAsterisk={false}
            maxLength={32}
            autoComplete="off"
            error={problem?.fields.duration && problem.message}
            onChange={(event) => setDuration(event.currentTarget.value)}
          />
        </Group>
        <Button type="submit" mt="sm" loading={create.isPending}>
          {t('token.create')}
        </Button>
      </form>
      {problem && !problem.fields.duration && <ProblemAlert error={problem} />}
      {token && (
        <Notice tone="good" role="status" title={t('token.made')}>
          <Stack gap="xs">
            <Text size="sm">{t('token.once')}</Text>
            <Line text={token} label={t('token.copy')} />
            <Text size="sm">{t('token.use')}</Text>
            <Line
              text={callOf({ url, variant: service.runtime_variant, isPublic: false }, token)}
              label={t('call.copy')}
            />
          </Stack>
        </Notice>
      )}
    </Stack>
  );
}

/** Makes tokens, each shown once, and tells until when those that were made are valid. */
export function TokensTab({ service }: { service: ServiceDetails }) {
  const { t } = useTranslation('services');
  const [page, setPage] = useState(1);
  const query = useServiceTokens(service.endpoint_id, page);
  return (
    <Stack>
      {service.is_public && <Notice tone="info" title={t('token.public')} />}
      {isLive(service.status) && (
        <Card title={t('token.new')}>
          <NewToken service={service} />
        </Card>
      )}
      <Card title={t('token.list')}>
        <Query query={query} rows={2}>
          {({ items, total }) => (
            <Stack gap="xs">
              <Text size="sm" c="dimmed">
                {t('token.listHint')}
              </Text>
              <SimpleTable
                label={t('token.list')}
                rows={items}
                idOf={(token) => `${token.created_at} ${token.valid_until}`}
                minWidth={320}
                columns={[
                  { label: t('column.created'), cell: (token) => <RelativeTime at={token.created_at} /> },
                  { label: t('token.validUntil'), cell: (token) => <RelativeTime at={token.valid_until} /> },
                ]}
              />
              {total > tokensPageSize && (
                <Group gap="xs">
                  <Button variant="default" size="xs" disabled={page <= 1} onClick={() => setPage(page - 1)}>
                    {t('token.previous')}
                  </Button>
                  <Button
                    variant="default"
                    size="xs"
                    disabled={page * tokensPageSize >= total}
                    onClick={() => setPage(page + 1)}
                  >
                    {t('token.next')}
                  </Button>
                  <Text size="sm" c="dimmed">
                    {t('token.total', { count: total })}
                  </Text>
                </Group>
              )}
            </Stack>
          )}
        </Query>
      </Card>
    </Stack>
  );
}
