import { Breadcrumbs, Button, NumberInput, Tabs, Text } from '@mantine/core';
import { useNavigate, useParams } from '@tanstack/react-router';
import { lazy, Suspense, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { AnchorLink } from '../../../components/AnchorLink';
import { Confirm } from '../../../components/Confirm';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { mostReplicas } from '../draft';
import { HistoryTab } from '../parts/HistoryTab';
import { OverviewTab } from '../parts/OverviewTab';
import { ReplicasTab } from '../parts/ReplicasTab';
import { RevisionsTab } from '../parts/RevisionsTab';
import { ServiceStatus } from '../parts/ServiceStatus';
import { TokensTab } from '../parts/TokensTab';
import { type ServiceDetails, useDestroy, useScale, useService } from '../queries';
import { isLive } from '../rules';
import classes from './ServicePage.module.css';

const UsageTab = lazy(() => import('../parts/UsageTab'));

/** The tabs of a service; others are added here, with a message `tab.NAME`. */
const tabs = {
  overview: OverviewTab,
  replicas: ReplicasTab,
  revisions: RevisionsTab,
  tokens: TokensTab,
  usage: UsageTab,
  history: HistoryTab,
} as const;
type TabName = keyof typeof tabs;

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
  const [dialog, setDialog] = useState<'scale' | 'destroy' | null>(null);
  const destroy = useDestroy(service.endpoint_id);
  const close = () => {
    destroy.reset();
    setDialog(null);
  };
  const count = service.active_routes.length;
  return (
    <>
      <Button variant="default" onClick={() => setDialog('scale')}>
        {t('scale.open')}
      </Button>
      <Button variant="default" onClick={() => setDialog('destroy')}>
        {t('destroy.open')}
      </Button>
      {dialog === 'scale' && <ScaleDialog service={service} onClose={close} />}
      <Confirm
        isOpen={dialog === 'destroy'}
        title={t('destroy.title', { name: service.name })}
        action={t('destroy.action')}
        isBusy={destroy.isPending}
        error={destroy.error}
        onConfirm={() => destroy.mutate(undefined, { onSuccess: close })}
        onClose={close}
      >
        <Text>{t('destroy.replicas', { count })}</Text>
        <Text>{t('destroy.detail')}</Text>
      </Confirm>
    </>
  );
}

function ServiceTabs({ service, tab }: { service: ServiceDetails; tab: TabName }) {
  const { t } = useTranslation('services');
  const navigate = useNavigate();
  const Content = tabs[tab];
  return (
    <Tabs
      value={tab}
      onChange={(name) =>
        void navigate({ to: '/services/$id/$tab', params: { id: service.endpoint_id, tab: name ?? 'overview' } })
      }
      keepMounted={false}
    >
      <Tabs.List className={classes.tabs ?? ''} aria-label={t('tabs')}>
        {Object.keys(tabs).map((name) => (
          <Tabs.Tab key={name} value={name}>
            {t(`tab.${name as TabName}`)}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      <Tabs.Panel value={tab} pt="md">
        <Suspense>
          <Content service={service} />
        </Suspense>
      </Tabs.Panel>
    </Tabs>
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
      <Breadcrumbs mb="xs" className={classes.crumbs ?? ''}>
        <AnchorLink to="/services" size="sm">
          {t('title')}
        </AnchorLink>
        <span className={classes.here}>{service?.name ?? id}</span>
      </Breadcrumbs>
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
