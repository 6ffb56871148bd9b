import { Stack } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { slotsOf } from '../../../api/filters';
import { useRole } from '../../../api/me';
import { Card } from '../../../components/Card';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RoleGate } from '../../../components/RoleGate';
import { Slots } from '../../../components/Slots';
import { StatusBadge } from '../../../components/StatusBadge';
import { formatBytes, formatDuration, formatNumber } from '../../../i18n/format';
import { EditableTable } from '../editing/EditableTable';
import { KeypairPolicyForm, ProjectPolicyForm, ResourceGroupForm, UserPolicyForm } from '../editing/forms';
import { usePolicies, useResourceGroups } from '../queries';
import { limitOf } from '../rules';

/** What keypairs, users and projects may have, and the resource groups. */
export function PoliciesPage() {
  const { t, i18n } = useTranslation('people');
  const { t: words } = useTranslation('editing');
  const number = (value: number | null | undefined) => formatNumber(limitOf(value), i18n.language);
  const bytes = (value: number | null | undefined) =>
    Number.isFinite(limitOf(value)) ? formatBytes(limitOf(value), i18n.language) : '∞';
  const duration = (value: number | null | undefined) =>
    Number.isFinite(limitOf(value)) ? formatDuration(limitOf(value), i18n.language) : '∞';
  const storage = [
    { label: t('column.name'), cell: (row: { name?: string | null }) => row.name },
    { label: t('column.folders'), cell: (row: { max_vfolder_count?: number | null }) => number(row.max_vfolder_count) },
    {
      label: t('column.storage'),
      cell: (row: { max_quota_scope_size?: number | null }) => bytes(row.max_quota_scope_size),
    },
  ] as const;
  const policies = usePolicies();
  const mayChange = useRole() === 'superadmin';
  const nameOf = (row: { name?: string | null }) => row.name ?? '';
  return (
    <RoleGate roles={['admin', 'superadmin', 'monitor']}>
      <Page title={t('policies')}>
        <Stack>
          <Query query={policies}>
            {({ keypair, user, project }) => (
              <Stack>
                <Card title={t('policy.keypair')}>
                  <EditableTable
                    kind="keypair"
                    form={KeypairPolicyForm}
                    label={t('policy.keypair')}
                    rows={keypair}
                    idOf={nameOf}
                    nameOf={nameOf}
                    mayChange={mayChange}
                    minWidth={mayChange ? 900 : 760}
                    columns={[
                      { label: t('column.name'), cell: (row) => row.name },
                      {
                        label: t('column.limits'),
                        cell: (row) => <Slots amounts={slotsOf(row.total_resource_slots)} />,
                      },
                      {
                        label: t('column.unspecified'),
                        cell: (row) => words(row.default_for_unspecified === 'LIMITED' ? 'limited' : 'unlimited'),
                      },
                      { label: t('column.sessions'), cell: (row) => number(row.max_concurrent_sessions) },
                      { label: t('column.waiting'), cell: (row) => number(row.max_pending_session_count) },
                      { label: t('column.lifetime'), cell: (row) => duration(row.max_session_lifetime) },
                      {
                        label: t('column.idle'),
                        cell: (row) => (row.idle_timeout === 0 ? t('usual') : duration(row.idle_timeout)),
                      },
                    ]}
                  />
                </Card>
                <Card title={t('policy.user')}>
                  <EditableTable
                    kind="user"
                    form={UserPolicyForm}
                    label={t('policy.user')}
                    rows={user}
                    idOf={nameOf}
                    nameOf={nameOf}
                    mayChange={mayChange}
                    columns={[...storage]}
                    minWidth={mayChange ? 460 : 360}
                  />
                </Card>
                <Card title={t('policy.project')}>
                  <EditableTable
                    kind="project"
                    form={ProjectPolicyForm}
                    label={t('policy.project')}
                    rows={project}
                    idOf={nameOf}
                    nameOf={nameOf}
                    mayChange={mayChange}
                    columns={[...storage]}
                    minWidth={mayChange ? 460 : 360}
                  />
                </Card>
              </Stack>
            )}
          </Query>
          <Card title={t('resourceGroups')}>
            <Query query={useResourceGroups()}>
              {(groups) => (
                <EditableTable
                  kind="resourceGroup"
                  form={ResourceGroupForm}
                  label={t('resourceGroups')}
                  rows={groups}
                  idOf={nameOf}
                  nameOf={nameOf}
                  mayChange={mayChange}
                  columns={[
                    { label: t('column.name'), cell: (row) => row.name },
                    { label: t('column.description'), cell: (row) => row.description },
                    {
                      label: t('column.status'),
                      cell: (row) => (
                        <StatusBadge
                          tone={row.is_active ? 'good' : 'idle'}
                          label={row.is_active ? t('active') : t('inactive')}
                        />
                      ),
                    },
                    { label: t('column.open'), cell: (row) => (row.is_public ? t('everybody') : t('associated')) },
                    { label: t('column.scheduler'), cell: (row) => row.scheduler },
                  ]}
                />
              )}
            </Query>
          </Card>
        </Stack>
      </Page>
    </RoleGate>
  );
}
export default PoliciesPage;
