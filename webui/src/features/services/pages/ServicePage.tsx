import { Button, NumberInput, Text } from '@mantine/core';
import { useNavigate, useParams } from '@tanstack/react-router';
import { lazy, Suspense, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { AnchorLink } from '../../../components/AnchorLink';
import { Confirm } from '../../../components/Confirm';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { Question } from '../../../components/Question';
import { Crumbs, PageTabs } from '../../../components/TabbedPage';
import { loadMessages } from '../../../i18n';
import { mostReplicas } from '../draft';
import { HistoryTab } from '../parts/HistoryTab';
import { OverviewTab } from '../parts/OverviewTab';
import { ReplicasTab } from '../parts/ReplicasTab';
import { RevisionsTab } from '../parts/RevisionsTab';
import { ServiceStatus } from '../parts/ServiceStatus';
import { TokensTab } from '../parts/TokensTab';
import { type ServiceDetails, useDestroy, useScale, useService, useSync } from '../queries';
import { isLive } from '../rules';

const UsageTab = lazy(() => import('../parts/UsageTab'));
const ChangeDialog = lazy(() => import('../parts/ChangeDialog'));
const ScalingTab = lazy(async () => (await Promise.all([import('../parts/ScalingTab'), loadMessages('scaling')]))[0]);
const PlaygroundTab = lazy(
  async () => (await Promise.all([import('../parts/PlaygroundTab'), loadMessages('playground')]))[0],
);

/** The tabs of a service; others are added here, with a message `tab.NAME`. */
const tabs = {
  overview: OverviewTab,
  playground: PlaygroundTab,
  replicas: ReplicasTab,
  revisions: RevisionsTab,
  scaling: ScalingTab,
  tokens: TokensTab,
  usage: UsageTab,
  history: HistoryTab,
} as const;
type TabName = keyof typeof tabs;
const tabNames = Object.keys(tabs) as TabName[];

function ScaleDialog({ service, onClose }: { service: ServiceDetails; onClose: () => void }) {
  const { t } = useTranslation('services');
  const [count, setCount] = useState<number | null>(service.desired_session_count);
  const scale = useScale(service.endpoint_id);
  const isFewer = count !== null && count < service.desired_session_count;
  return (
    <Confirm
      isOpen
      title={t('scale.title', { name: service.name })}
      action={t('scale.action')}
      isDangerous={isFewer}
      isBusy={scale.isPending}
      error={scale.error}
      onConfirm={() => {
        if (count !== null) scale.mutate(count, { onSuccess: onClose });
      }}
      onClose={onClose}
    >
      <NumberInput
        label={t('scale.count')}
        min={0}
        max={mostReplicas}
        allowDecimal={false}
        value={count ?? ''}
        error={scale.isError ? asProblem(scale.error).fields.desired_session_count : undefined}
        onChange={(value) => setCount(typeof value === 'number' ? value : null)}
      />
      {isFewer && <Text size="sm">{t('scale.fewer')}</Text>}
    </Confirm>
  );
}

function Actions({ service }: { service: ServiceDetails }) {
  const { t } = useTranslation('services');
  const [dialog, setDialog] = useState<'change' | 'scale' | 'sync' | 'destroy' | null>(null);
  const destroy = useDestroy(service.endpoint_id);
  const sync = useSync(service.endpoint_id);
  const close = () => {
    destroy.reset();
    sync.reset();
    setDialog(null);
  };
  const count = service.active_routes.length;
  return (
    <>
      <Button variant="default" onClick={() => setDialog('change')}>
        {t('change.open')}
      </Button>
      <Button variant="default" onClick={() => setDialog('scale')}>
        {t('scale.open')}
      </Button>
      <Button variant="default" onClick={() => setDialog('sync')}>
        {t('sync.open')}
      </Button>
      <Button variant="default" onClick={() => setDialog('destroy')}>
        {t('destroy.open')}
      </Button>
      {dialog === 'change' && (
        <Suspense>
          <ChangeDialog service={service} onClose={close} />
        </Suspense>
      )}
      <Confirm
        isOpen={dialog === 'sync'}
        title={t('sync.title', { name: service.name })}
        action={t('sync.action')}
        isDangerous={false}
        isBusy={sync.isPending}
        error={sync.error}
        onConfirm={() => sync.mutate(undefined, { onSuccess: close })}
        onClose={close}
      >
        <Text>{t('sync.detail')}</Text>
      </Confirm>
      {dialog === 'scale' && <ScaleDialog service={service} onClose={close} />}
      {dialog === 'destroy' && (
        <Question
          act={destroy}
          input={undefined}
          title={t('destroy.title', { name: service.name })}
          action={t('destroy.action')}
          name={service.name}
          onClose={close}
        >
          <Text>{t('destroy.replicas', { count })}</Text>
          <Text>{t('destroy.detail')}</Text>
        </Question>
      )}
    </>
  );
}

function ServiceTabs({ service, tab }: { service: ServiceDetails; tab: TabName }) {
  const { t } = useTranslation('services');
  const navigate = useNavigate();
  const Content = tabs[tab];
  return (
    <PageTabs
      label={t('tabs')}
      names={tabNames}
      labelOf={(name) => t(`tab.${name}`)}
      open={tab}
      onOpen={(name) => void navigate({ to: '/services/$id/$tab', params: { id: service.endpoint_id, tab: name } })}
    >
      <Content service={service} />
    </PageTabs>
  );
}

/** One service: what it is, why it is in its status, and what can be done with it. */
export function ServicePage() {
  const { t } = useTranslation('services');
  const { id = '', tab: wanted = 'overview' } = useParams({ strict: false });
  const query = useService(id);
  const service = query.data;
  const tab: TabName = Object.hasOwn(tabs, wanted) ? (wanted as TabName) : 'overview';
  return (
    <>
      <Crumbs
        list={
          <AnchorLink to="/services" size="sm">
            {t('title')}
          </AnchorLink>
        }
        here={service?.name ?? id}
      />
      <Page
        title={service?.name ?? t('one')}
        badge={service && <ServiceStatus status={service.status} reason={service.reason} />}
        actions={service && isLive(service.status) && <Actions service={service} />}
      >
        <Query query={query}>{(details) => <ServiceTabs service={details} tab={tab} />}</Query>
      </Page>
    </>
  );
}
export default ServicePage;
