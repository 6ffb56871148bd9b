import { Button, Checkbox, Group, SimpleGrid, Stack, Switch, Text, Textarea } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Facts } from '../../../components/Facts';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { StatusBadge } from '../../../components/StatusBadge';
import { RecountCard } from '../parts/RecountCard';
import { SystemTabs } from '../parts/SystemTabs';
import { useAnnouncement, useManagerStatus, useSetAnnouncement, useSetStatus } from '../state';

function StatusCard({ mayChange }: { mayChange: boolean }) {
  const { t } = useTranslation('operations');
  const query = useManagerStatus();
  const change = useSetStatus();
  const [asks, setAsks] = useState(false);
  const [kills, setKills] = useState(false);
  return (
    <Card title={t('status.title')}>
      <Query query={query}>
        {(status) => {
          const isFrozen = status.status === 'frozen';
          return (
            <Stack gap="sm">
              <Facts
                rows={[
                  [
                    t('status.now'),
                    <StatusBadge
                      key="status"
                      tone={isFrozen ? 'wait' : 'good'}
                      label={isFrozen ? t('status.frozen') : t('status.running')}
                    />,
                  ],
                  [t('status.sessions'), status.active_sessions],
                ]}
              />
              {change.isError && !asks && <ProblemAlert error={change.error} />}
              {mayChange && (
                <Group>
                  {isFrozen ? (
                    <Button
                      loading={change.isPending}
                      onClick={() => change.mutate({ status: 'running', force_kill: false })}
                    >
                      {t('status.unfreeze')}
                    </Button>
                  ) : (
                    <Button variant="default" onClick={() => setAsks(true)}>
                      {t('status.freeze')}
                    </Button>
                  )}
                </Group>
              )}
              <Confirm
                isOpen={asks}
                title={t('status.confirm')}
                action={t('status.freeze')}
                isDangerous={kills}
                isBusy={change.isPending}
                error={change.error}
                onConfirm={() =>
                  change.mutate(
                    { status: 'frozen', force_kill: kills },
                    {
                      onSuccess: () => {
                        setAsks(false);
                        setKills(false);
                      },
                    },
                  )
                }
                onClose={() => setAsks(false)}
              >
                <Text>{t('status.means')}</Text>
                <Checkbox
                  label={t('status.kill', { count: status.active_sessions })}
                  description={t('status.killHint')}
                  checked={kills}
                  onChange={(event) => setKills(event.currentTarget.checked)}
                />
              </Confirm>
            </Stack>
          );
        }}
      </Query>
    </Card>
  );
}

function AnnouncementForm({ enabled, message, mayChange }: { enabled: boolean; message: string; mayChange: boolean }) {
  const { t } = useTranslation('operations');
  const [text, setText] = useState(message);
  const [isShown, setShown] = useState(enabled);
  const save = useSetAnnouncement();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate({ enabled: isShown, message: text });
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="sm">
        <Textarea
          label={t('announcement.text')}
          description={t('announcement.hint')}
          autosize
          minRows={3}
          maxRows={12}
          value={text}
          readOnly={!mayChange}
          onChange={(event) => setText(event.currentTarget.value)}
        />
        <Switch
          label={t('announcement.shown')}
          checked={isShown}
          disabled={!mayChange}
          onChange={(event) => setShown(event.currentTarget.checked)}
        />
        {save.isError && <ProblemAlert error={save.error} />}
        {mayChange && (
          <Group>
            <Button type="submit" variant="default" loading={save.isPending}>
              {t('announcement.save')}
            </Button>
            {save.isSuccess && (
              <Text size="sm" role="status">
                {t('announcement.saved')}
              </Text>
            )}
          </Group>
        )}
      </Stack>
    </form>
  );
}

/** The state of the installation, and the announcement for everybody. */
export function SystemPage() {
  const { t } = useTranslation('operations');
  const announcement = useAnnouncement();
  const mayChange = useRole() === 'superadmin';
  return (
    <Page title={t('system.title')}>
      <SystemTabs here="installation" />
      <SimpleGrid cols={{ base: 1, lg: 2 }}>
        <StatusCard mayChange={mayChange} />
        <Card title={t('announcement.title')}>
          <Query query={announcement}>
            {(data) => (
              <AnnouncementForm
                key={`${data.enabled} ${data.message}`}
                enabled={data.enabled}
                message={data.message}
                mayChange={mayChange}
              />
            )}
          </Query>
        </Card>
        {mayChange && <RecountCard />}
      </SimpleGrid>
    </Page>
  );
}
export default gated(['admin', 'superadmin', 'monitor'], SystemPage);
