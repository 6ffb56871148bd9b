import { Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { EmptyState } from '../../../components/EmptyState';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { type ServiceDetails, useServiceWhy } from '../queries';
import { canBeEnded } from '../rules';
import { ReplicaActions } from './ReplicaActions';
import { ServiceStatus } from './ServiceStatus';

/** The replicas, those that have ended lately among them, with what each waits for or has failed of. */
export function ReplicasTab({ service }: { service: ServiceDetails }) {
  const { t } = useTranslation('services');
  const query = useServiceWhy(service.endpoint_id, service.status);
  return (
    <Query query={query}>
      {({ replicas, obstacles }) =>
        replicas.length === 0 ? (
          <EmptyState title={t('replica.none')}>{t('replica.noneHint')}</EmptyState>
        ) : (
          <SimpleTable
            label={t('tab.replicas')}
            rows={[...replicas].reverse()}
            idOf={(replica) => replica.route_id}
            minWidth={680}
            columns={[
              {
                label: t('replica.session'),
                cell: (replica) => (
                  <AnchorLink to="/sessions/$id" params={{ id: replica.session_id }} title={replica.session_id}>
                    {replica.session_id.slice(0, 8)}
                  </AnchorLink>
                ),
              },
              {
                label: t('column.status'),
                cell: (replica) => <ServiceStatus status={replica.status} reason={replica.reason} />,
              },
              {
                label: t('replica.detail'),
                cell: (replica) => <Text size="sm">{obstacles[replica.route_id] || replica.detail || '–'}</Text>,
              },
              { label: t('replica.revision'), cell: (replica) => replica.revision },
              { label: t('replica.weight'), cell: (replica) => replica.traffic_ratio },
              {
                label: t('revision.actions'),
                cell: (replica) =>
                  canBeEnded(replica.status) && <ReplicaActions endpoint={service.endpoint_id} replica={replica} />,
              },
            ]}
          />
        )
      }
    </Query>
  );
}
