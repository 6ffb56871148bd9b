import { Button, Code, Group, PasswordInput, SimpleGrid, Stack } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useMe } from '../../../api/me';
import { asProblem } from '../../../api/problems';
import { Card } from '../../../components/Card';
import { Copy } from '../../../components/Copy';
import { Facts } from '../../../components/Facts';
import { Notice } from '../../../components/Notice';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { KeypairCard } from '../parts/KeypairCard';
import { LoginSessionsCard } from '../parts/LoginSessionsCard';
import { SessionFilesCard } from '../parts/SessionFilesCard';
import { SignInsCard } from '../parts/SignInsCard';
import { SshCard } from '../parts/SshCard';
import { TotpCard } from '../parts/TotpCard';
import { useChangePassword } from '../queries';

function PasswordCard() {
  const { t } = useTranslation('account');
  const [old, setOld] = useState('');
  const [wanted, setWanted] = useState('');
  const change = useChangePassword();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    change.mutate(
      { old_password: old, new_password: wanted, new_password2: wanted },
      {
        onSuccess: () => {
          setOld('');
          setWanted('');
        },
      },
    );
  };
  const fields = change.isError ? asProblem(change.error).fields : {};
  return (
    <Card title={t('password.title')}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <PasswordInput
            label={t('password.old')}
            autoComplete="current-password"
            required
            withAsterisk={false}
            value={old}
            error={fields.old_password}
            visibilityToggleButtonProps={{ 'aria-label': t('password.show'), tabIndex: 0 }}
            onChange={(event) => setOld(event.currentTarget.value)}
          />
          <PasswordInput
            label={t('password.new')}
            description={t('password.hint')}
            autoComplete="new-password"
            required
            withAsterisk={false}
            value={wanted}
            error={fields.new_password}
            visibilityToggleButtonProps={{ 'aria-label': t('password.show'), tabIndex: 0 }}
            onChange={(event) => setWanted(event.currentTarget.value)}
          />
          {change.isError && <ProblemAlert error={change.error} />}
          {change.isSuccess && <Notice tone="good" role="status" title={t('password.changed')} />}
          <Button type="submit" variant="default" loading={change.isPending} style={{ alignSelf: 'start' }}>
            {t('password.submit')}
          </Button>
        </Stack>
      </form>
    </Card>
  );
}

/** Who the person is for the installation, and how they sign in. */
export function AccountPage() {
  const { t } = useTranslation('account');
  const me = useMe();
  return (
    <Page title={t('title')}>
      <SimpleGrid cols={{ base: 1, lg: 2 }}>
        <Card title={t('who')}>
          <Query query={me}>
            {({ user, keypair }) => (
              <Facts
                rows={[
                  [t('fact.email'), user?.email],
                  [t('fact.name'), user?.full_name],
                  [t('fact.role'), user?.role],
                  [t('fact.domain'), user?.domain_name],
                  [t('fact.projects'), (user?.groups ?? []).map((group) => group?.name).join(', ')],
                  [
                    t('fact.accessKey'),
                    <Group key="key" gap={4} wrap="nowrap">
                      <Code>{keypair?.access_key}</Code>
                      <Copy value={keypair?.access_key ?? ''} label={t('copyKey')} />
                    </Group>,
                  ],
                  [t('fact.policy'), keypair?.resource_policy],
                  [t('fact.lastUsed'), <RelativeTime key="used" at={keypair?.last_used} />],
                ]}
              />
            )}
          </Query>
        </Card>
        <PasswordCard />
        <TotpCard />
        <SshCard />
        <KeypairCard />
        <SessionFilesCard />
      </SimpleGrid>
      <LoginSessionsCard />
      <SignInsCard />
    </Page>
  );
}
export default AccountPage;
