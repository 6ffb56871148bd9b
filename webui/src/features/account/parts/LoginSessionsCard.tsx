import { Badge, Button, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { SimpleTable } from '../../../components/SimpleTable';
import { type LoginSession, useEndLoginSession, useLoginSessions } from '../queries';
import { clientName } from '../rules';

/** The login sessions of the person at the web server, each of which can be ended. */
export function LoginSessionsCard() {
  const { t } = useTranslation('account');
  const query = useLoginSessions();
  const end = useEndLoginSession();
  const [asked, setAsked] = useState<LoginSession | null>(null);
  return (
    <Card title={t('logins.title')}>
      <Query query={query}>
        {(logins) => (
          <SimpleTable
            label={t('logins.title')}
            rows={logins}
            idOf={(login) => login.session_id}
            columns={[
              { label: t('logins.client'), cell: (login) => <span title={login.client}>{nameOf(login)}</span> },
              { label: t('logins.address'), cell: (login) => login.address },
              { label: t('logins.since'), cell: (login) => <RelativeTime at={login.created_at} /> },
              { label: t('logins.until'), cell: (login) => <RelativeTime at={login.expires_at} /> },
              {
                label: t('logins.action'),
                cell: (login) =>
                  login.is_current ? (
                    <Badge variant="outline">{t('logins.current')}</Badge>
                  ) : (
                    <Button
                      size="compact-xs"
                      variant="default"
                      aria-label={t('logins.endName', { client: nameOf(login), address: login.address })}
                      onClick={() => {
                        end.reset();
                        setAsked(login);
                      }}
                    >
                      {t('logins.end')}
                    </Button>
                  ),
              },
            ]}
          />
        )}
      </Query>
      {asked !== null && (
        <Confirm
          isOpen
          title={t('logins.endName', { client: nameOf(asked), address: asked.address })}
          action={t('logins.end')}
          isBusy={end.isPending}
          error={end.error}
          onConfirm={() => end.mutate(asked.session_id, { onSuccess: () => setAsked(null) })}
          onClose={() => setAsked(null)}
        >
          <Text>{t('logins.endMeans')}</Text>
        </Confirm>
      )}
    </Card>
  );

  function nameOf(login: LoginSession): string {
    return clientName(login.client) || t('logins.unknown');
  }
}
