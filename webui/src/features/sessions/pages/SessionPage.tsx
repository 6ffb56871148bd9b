import { Button } from '@mantine/core';
import { IconPlayerStop, IconTerminal2 } from '@tabler/icons-react';
import { useNavigate, useParams } from '@tanstack/react-router';
import { lazy, Suspense, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { type Role, useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { ButtonLink } from '../../../components/ButtonLink';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { Crumbs, PageTabs } from '../../../components/TabbedPage';
import { loadMessages } from '../../../i18n';
import { AppsTab } from '../parts/AppsTab';
import { DevicesTab } from '../parts/DevicesTab';
import { EventsTab } from '../parts/EventsTab';
import { LogsTab } from '../parts/LogsTab';
import { OverviewTab } from '../parts/OverviewTab';
import { SessionStatus } from '../parts/SessionStatus';
import { TerminateDialog } from '../parts/TerminateDialog';
import { type SessionDetails, useSession } from '../queries';
import { isLive, isRunning } from '../rules';

const MetricsTab = lazy(() => import('../parts/MetricsTab'));
const CellsTab = lazy(() => withMessages(import('../parts/CellsTab')));
const MoreActions = lazy(() => withMessages(import('../parts/MoreActions')));
const FilesTab = lazy(() => withMessages(import('../parts/FilesTab')));
const ReportTab = lazy(() => withMessages(import('../parts/ReportTab')));

async function withMessages<T>(part: Promise<T>): Promise<T> {
  return (await Promise.all([part, loadMessages('sessionWork')]))[0];
}

/** The tabs of a session; others are added here, with a message `tab.NAME`. */
const tabs = {
  overview: OverviewTab,
  logs: LogsTab,
  cells: CellsTab,
  files: FilesTab,
  apps: AppsTab,
  metrics: MetricsTab,
  devices: DevicesTab,
  events: EventsTab,
  report: ReportTab,
} as const;
type TabName = keyof typeof tabs;
const tabNames = Object.keys(tabs) as TabName[];
/** Those who see agents; the manager refuses the report to others. */
const operators: readonly Role[] = ['superadmin', 'monitor'];

function SessionTabs({ session, tab, names }: { session: SessionDetails; tab: TabName; names: readonly TabName[] }) {
  const { t } = useTranslation('sessions');
  const navigate = useNavigate();
  const Content = tabs[tab];
  const id = session.id ?? '';
  return (
    <PageTabs
      label={t('tabs')}
      names={names}
      labelOf={(name) => t(`tab.${name}`)}
      open={tab}
      onOpen={(name) => void navigate({ to: '/sessions/$id/$tab', params: { id: id, tab: name } })}
    >
      <Content session={session} />
    </PageTabs>
  );
}

/** One session: what it is, why it is in its status, and what can be done with it. */
export function SessionPage() {
  const { t } = useTranslation('sessions');
  const { id = '', tab: wanted = 'overview' } = useParams({ strict: false });
  const query = useSession(id);
  const [isTerminating, setTerminating] = useState(false);
  const session = query.data;
  const role = useRole();
  const names = tabNames.filter((name) => name !== 'report' || operators.includes(role));
  const tab = names.find((name) => name === wanted) ?? 'overview';
  return (
    <>
      <Crumbs
        list={
          <AnchorLink to="/sessions" size="sm">
            {t('title')}
          </AnchorLink>
        }
        here={session?.name ?? id}
      />
      <Page
        title={session?.name ?? t('one')}
        badge={session && <SessionStatus status={session.status} />}
        actions={
          session &&
          isLive(session.status) && (
            <>
              {isRunning(session.status) && (
                <ButtonLink
                  to="/sessions/$id/terminal"
                  params={{ id: session.id ?? id }}
                  leftSection={<IconTerminal2 size={16} aria-hidden />}
                >
                  {t('openTerminal')}
                </ButtonLink>
              )}
              <Button
                variant="default"
                leftSection={<IconPlayerStop size={16} aria-hidden />}
                onClick={() => setTerminating(true)}
              >
                {t('terminate.action')}
              </Button>
              <Suspense>
                <MoreActions session={session} />
              </Suspense>
            </>
          )
        }
      >
        <Query query={query}>
          {(data) =>
            data === null ? (
              <EmptyState title={t('missing.title')}>{t('missing.detail')}</EmptyState>
            ) : (
              <SessionTabs session={data} tab={tab} names={names} />
            )
          }
        </Query>
      </Page>
      {isTerminating && session && (
        <TerminateDialog
          sessions={[{ id: session.id ?? id, name: session.name ?? id }]}
          onClose={() => setTerminating(false)}
          onDone={() => undefined}
        />
      )}
    </>
  );
}
export default SessionPage;
