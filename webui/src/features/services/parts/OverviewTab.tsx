import { Anchor, Code, Group, SimpleGrid, Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { environText } from '../../../api/environ';
import { AnchorLink } from '../../../components/AnchorLink';
import { ButtonLink } from '../../../components/ButtonLink';
import { Card } from '../../../components/Card';
import { Copy } from '../../../components/Copy';
import { Facts } from '../../../components/Facts';
import { Notice } from '../../../components/Notice';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { type ServiceDetails, useServiceWhy } from '../queries';
import { callOf, webAddressOf } from '../rules';
import { Line } from './Line';
import { ServiceStatus } from './ServiceStatus';

/** The address of a service: a link where anybody may call it. */
export function Address({ url, isPublic }: { url: string | null | undefined; isPublic: boolean }) {
  const { t } = useTranslation('services');
  if (!url) return <span>{t('noUrl')}</span>;
  const href = isPublic ? webAddressOf(url) : null;
  return (
    <Group gap={4} wrap="nowrap" component="span">
      {href === null ? (
        <span>{url}</span>
      ) : (
        <Anchor href={href} target="_blank" rel="noopener nofollow">
          {url}
        </Anchor>
      )}
      <Copy value={url} label={t('copyUrl')} />
    </Group>
  );
}

function Why({ service }: { service: ServiceDetails }) {
  const { t } = useTranslation('services');
  const query = useServiceWhy(service.endpoint_id, service.status);
  return (
    <Card title={t('why.title')}>
      <Query query={query} rows={3}>
        {(why) => (
          <Stack gap="sm">
            <ServiceStatus status={why.status} reason={why.reason} />
            {why.explanation !== '' && <Text size="sm">{why.explanation}</Text>}
            {why.problem && (
              <Notice tone="bad" title={t('why.problem')}>
                {why.problem}
              </Notice>
            )}
            <Facts
              rows={Object.entries(why.obstacles).map(([id, text]) => [
                id.slice(0, 8),
                <Stack key={id} gap={2}>
                  <span>{text}</span>
                  <AnchorLink to="/sessions/$id" params={{ id }} size="sm">
                    {t('session')}
                  </AnchorLink>
                </Stack>,
              ])}
            />
          </Stack>
        )}
      </Query>
    </Card>
  );
}

/** What the service is, why it is in its status, and how it is called. */
export function OverviewTab({ service }: { service: ServiceDetails }) {
  const { t } = useTranslation('services');
  const ready = service.active_routes.filter((replica) => replica.status === 'ready').length;
  const environ = environText(service.environ);
  const call = { url: service.service_endpoint ?? '', variant: service.runtime_variant, isPublic: service.is_public };
  return (
    <SimpleGrid cols={{ base: 1, md: 2 }}>
      <Stack>
        <Why service={service} />
        <Card title={t('call.title')}>
          {call.url === '' ? (
            <Text c="dimmed">{t('call.notYet')}</Text>
          ) : (
            <Stack gap="xs">
              <Line text={callOf(call)} label={t('call.copy')} />
              {!service.is_public && (
                <>
                  <Text size="sm">{t('call.token')}</Text>
                  <ButtonLink
                    to="/services/$id/$tab"
                    params={{ id: service.endpoint_id, tab: 'tokens' }}
                    variant="default"
                    size="xs"
                  >
                    {t('tab.tokens')}
                  </ButtonLink>
                </>
              )}
            </Stack>
          )}
        </Card>
      </Stack>
      <Card title={t('facts')}>
        <Facts
          rows={[
            [
              'ID',
              <Group key="id" gap={4} wrap="nowrap">
                <Code>{service.endpoint_id}</Code>
                <Copy value={service.endpoint_id} label={t('copyId')} />
              </Group>,
            ],
            [t('column.url'), <Address key="url" url={service.service_endpoint} isPublic={service.is_public} />],
            [t('column.replicas'), t('ready', { ready, wanted: service.desired_session_count })],
            [t('fact.access'), t(service.is_public ? 'access.public' : 'access.token')],
            [t('fact.model'), service.model_name],
            [
              t('fact.folder'),
              service.model_id.startsWith('artifact:') ? (
                service.model_id
              ) : (
                <AnchorLink key="folder" to="/folders/$id" params={{ id: service.model_id }}>
                  {service.model_id}
                </AnchorLink>
              ),
            ],
            [t('fact.definition'), service.model_definition_path],
            [t('fact.mount'), service.model_mount_destination],
            [t('fact.image'), service.image],
            [t('fact.variant'), service.runtime_variant],
            [t('create.command'), service.startup_command && <Code block>{service.startup_command}</Code>],
            [t('change.environ'), environ && <Code block>{environ}</Code>],
            [t('fact.secrets'), service.secret_names.join(', ')],
            [
              t('fact.resources'),
              Object.entries(service.resources)
                .map(([slot, amount]) => `${slot}=${amount}`)
                .join(', '),
            ],
            [t('change.tag'), service.tag],
            [t('fact.project'), `${service.domain} / ${service.project}`],
            [t('fact.group'), service.resource_group],
            [t('column.created'), <RelativeTime key="created" at={service.created_at} />],
          ]}
        />
      </Card>
    </SimpleGrid>
  );
}
