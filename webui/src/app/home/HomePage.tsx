import { NativeSelect, Progress, SimpleGrid, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useMe } from '../../api/me';
import { formatSlot, slotLabel, useSlotDetails } from '../../api/slots';
import { AnchorLink } from '../../components/AnchorLink';
import { Card } from '../../components/Card';
import { Page } from '../../components/Page';
import { Query } from '../../components/Query';
import { Slots } from '../../components/Slots';
import { SessionList } from '../../features/sessions/parts/SessionList';
import { useSessionsOf } from '../../features/sessions/queries';
import classes from './HomePage.module.css';
import { useQuota } from './queries';
import { quotasOf } from './rules';

const shownSessions = 6;

function SessionsCard({ status, accessKey }: { status: 'running' | 'waiting'; accessKey: string }) {
  const { t } = useTranslation('home');
  const query = useSessionsOf(status, shownSessions, accessKey);
  return (
    <Card title={t(status)}>
      <Query query={query}>
        {({ items, total }) =>
          total === 0 ? (
            <>
              <Text c="dimmed">{t(`none.${status}`)}</Text>
              {status === 'running' && <AnchorLink to="/sessions/new">{t('first')}</AnchorLink>}
            </>
          ) : (
            <>
              <SessionList sessions={items} />
              {total > items.length && (
                <AnchorLink to="/sessions" search={{ status, whose: 'mine' }} size="sm">
                  {t('all', { count: total })}
                </AnchorLink>
              )}
            </>
          )
        }
      </Query>
    </Card>
  );
}

function QuotaCard({ groups }: { groups: string[] }) {
  const { t, i18n } = useTranslation('home');
  const [chosen, setChosen] = useState<string | null>(null);
  const group = chosen ?? groups[0] ?? '';
  const query = useQuota(group);
  const { data: details } = useSlotDetails();
  if (groups.length === 0)
    return (
      <Card title={t('quota')}>
        <Text c="dimmed">{t('noProject')}</Text>
      </Card>
    );
  return (
    <Card title={t('quota')}>
      <Stack gap="sm">
        {groups.length > 1 && (
          <NativeSelect
            label={t('project')}
            data={groups}
            value={group}
            onChange={(event) => setChosen(event.currentTarget.value)}
          />
        )}
        <Query query={query}>
          {(quota) => (
            <SimpleGrid cols={{ base: 1, sm: 2 }}>
              <div>
                <Text fw={600} size="sm" mb={4}>
                  {t('used')}
                </Text>
                {quotasOf(quota.keypair_using, [
                  quota.keypair_remaining,
                  quota.group_remaining,
                  quota.domain_remaining,
                ]).map(({ slot, used, limit }) => {
                  const text = `${formatSlot(slot, String(used), details, i18n.language)} / ${formatSlot(slot, String(limit), details, i18n.language)}`;
                  return (
                    <div key={slot} className={classes.quota}>
                      <span>{slotLabel(slot, details)}</span>
                      <span>{text}</span>
                      {Number.isFinite(limit) && (
                        <Progress
                          className={classes.bar ?? ''}
                          value={limit === 0 ? 100 : (100 * used) / limit}
                          aria-label={`${slotLabel(slot, details)}: ${text}`}
                        />
                      )}
                    </div>
                  );
                })}
              </div>
              <div>
                <Text fw={600} size="sm" mb={4}>
                  {t('free')}
                </Text>
                {Object.entries(quota.scaling_groups).map(([name, slots]) => (
                  <div key={name} className={classes.quota}>
                    <span>{name}</span>
                    <Slots amounts={slots.remaining} />
                  </div>
                ))}
              </div>
            </SimpleGrid>
          )}
        </Query>
      </Stack>
    </Card>
  );
}

/** What runs, what waits and why, and what may still be used. */
export function HomePage() {
  const { t } = useTranslation('home');
  const me = useMe();
  return (
    <Page title={t('title')}>
      <Query query={me}>
        {(data) => {
          const accessKey = data.keypair?.access_key ?? '';
          const groups = (data.user?.groups ?? []).map((group) => group?.name ?? '').filter((name) => name !== '');
          return (
            <Stack>
              <SimpleGrid cols={{ base: 1, lg: 2 }}>
                <SessionsCard status="running" accessKey={accessKey} />
                <SessionsCard status="waiting" accessKey={accessKey} />
              </SimpleGrid>
              <QuotaCard groups={groups} />
            </Stack>
          );
        }}
      </Query>
    </Page>
  );
}
