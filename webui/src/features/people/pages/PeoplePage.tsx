import { Code, Tabs } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { slotsOf } from '../../../api/filters';
import { useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { ButtonLink } from '../../../components/ButtonLink';
import type { Column } from '../../../components/DataTable';
import { Page } from '../../../components/Page';
import { PagedList } from '../../../components/PagedList';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { RoleGate } from '../../../components/RoleGate';
import { SearchField } from '../../../components/SearchField';
import { Slots } from '../../../components/Slots';
import { StatusBadge } from '../../../components/StatusBadge';
import { EditableTable } from '../editing/EditableTable';
import { DomainForm, ProjectForm } from '../editing/forms';
import { KeypairActions } from '../parts/KeypairActions';
import { UserActions } from '../parts/UserActions';
import { useDomains, useGroups, useKeypairPages, useUserPages } from '../queries';

interface ListProps {
  q: string;
  sort: string;
  onSort: (sort: string) => void;
}

function Users({ q, sort, onSort }: ListProps) {
  const { t } = useTranslation('people');
  const order = sort || '-created_at';
  const role = useRole();
  const mayChange = role === 'superadmin' || role === 'admin';
  const pages = useUserPages(q, order);
  type Row = NonNullable<ReturnType<typeof pages.rowAt>>;
  const columns: Column<Row>[] = [
    { id: 'email', label: t('column.email'), width: '2fr', orderBy: 'email', cell: (row) => row.email },
    {
      id: 'name',
      label: t('column.name'),
      width: '1.5fr',
      orderBy: 'full_name',
      isSecondary: true,
      cell: (row) => row.full_name,
    },
    { id: 'role', label: t('column.role'), width: '110px', orderBy: 'role', cell: (row) => row.role },
    {
      id: 'status',
      label: t('column.status'),
      width: '130px',
      orderBy: 'status',
      cell: ({ status }) => (
        <StatusBadge
          tone={status === 'active' ? 'good' : 'idle'}
          label={t(`userStatus.${status}` as 'userStatus.active', status ?? '')}
        />
      ),
    },
    { id: 'domain', label: t('column.domain'), width: '120px', isSecondary: true, cell: (row) => row.domain_name },
    {
      id: 'groups',
      label: t('column.projects'),
      width: '1.5fr',
      isSecondary: true,
      cell: (row) => (row.groups ?? []).map((group) => group?.name).join(', '),
    },
    {
      id: 'created',
      label: t('column.created'),
      width: '120px',
      orderBy: 'created_at',
      isSecondary: true,
      cell: (row) => <RelativeTime at={row.created_at} />,
    },
    ...(mayChange
      ? [
          {
            id: 'act',
            label: t('act.title'),
            width: '150px',
            cell: (row: Row) => (
              <UserActions
                user={{
                  uuid: row.uuid ?? '',
                  email: row.email ?? '',
                  status: row.status ?? '',
                  hasTotp: row.totp_activated === true,
                }}
              />
            ),
          },
        ]
      : []),
  ];
  return (
    <PagedList
      pages={pages}
      label={t('tab.users')}
      columns={columns}
      idOf={(row) => row.email ?? ''}
      sort={order}
      onSort={onSort}
    />
  );
}

function Keypairs({ q, sort, onSort }: ListProps) {
  const { t } = useTranslation('people');
  const order = sort || '-created_at';
  const role = useRole();
  const pages = useKeypairPages(q, order);
  type Row = NonNullable<ReturnType<typeof pages.rowAt>>;
  const columns: Column<Row>[] = [
    { id: 'user', label: t('column.email'), width: '2fr', orderBy: 'user_id', cell: (row) => row.user_id },
    { id: 'key', label: t('column.accessKey'), width: '220px', cell: (row) => <Code>{row.access_key}</Code> },
    {
      id: 'active',
      label: t('column.status'),
      width: '120px',
      cell: (row) => (
        <StatusBadge tone={row.is_active ? 'good' : 'idle'} label={row.is_active ? t('active') : t('inactive')} />
      ),
    },
    {
      id: 'policy',
      label: t('column.policy'),
      width: '1fr',
      orderBy: 'resource_policy',
      isSecondary: true,
      cell: (row) => row.resource_policy,
    },
    {
      id: 'sessions',
      label: t('column.sessions'),
      width: '90px',
      isSecondary: true,
      cell: (row) => row.concurrency_used,
    },
    {
      id: 'used',
      label: t('column.lastUsed'),
      width: '130px',
      orderBy: 'last_used',
      isSecondary: true,
      cell: (row) => <RelativeTime at={row.last_used} />,
    },
    ...(role === 'superadmin' || role === 'admin'
      ? [
          {
            id: 'act',
            label: t('act.title'),
            width: '150px',
            cell: (row: Row) => (
              <KeypairActions
                accessKey={row.access_key ?? ''}
                email={row.user_id ?? ''}
                isActive={row.is_active === true}
              />
            ),
          },
        ]
      : []),
  ];
  return (
    <PagedList
      pages={pages}
      label={t('tab.keypairs')}
      columns={columns}
      idOf={(row) => row.access_key ?? ''}
      sort={order}
      onSort={onSort}
    />
  );
}

function Groups() {
  const { t } = useTranslation('people');
  const role = useRole();
  return (
    <Query query={useGroups()}>
      {(groups) => (
        <EditableTable
          kind="group"
          form={ProjectForm}
          mayChange={role === 'superadmin' || role === 'admin'}
          mayRemove={role === 'superadmin'}
          minWidth={760}
          nameOf={(group) => group.name ?? ''}
          label={t('tab.groups')}
          rows={groups}
          idOf={(group) => group.id ?? ''}
          columns={[
            {
              label: t('column.name'),
              cell: (group) => (
                <AnchorLink to="/projects/$id" params={{ id: group.id ?? '' }}>
                  {group.name}
                </AnchorLink>
              ),
            },
            { label: t('column.domain'), cell: (group) => group.domain_name },
            {
              label: t('column.status'),
              cell: (group) => (
                <StatusBadge
                  tone={group.is_active ? 'good' : 'idle'}
                  label={group.is_active ? t('active') : t('inactive')}
                />
              ),
            },
            { label: t('column.type'), cell: (group) => group.type },
            { label: t('column.policy'), cell: (group) => group.resource_policy },
            { label: t('column.limits'), cell: (group) => <Slots amounts={slotsOf(group.total_resource_slots)} /> },
          ]}
        />
      )}
    </Query>
  );
}

function Domains() {
  const { t } = useTranslation('people');
  const mayChange = useRole() === 'superadmin';
  return (
    <Query query={useDomains()}>
      {(domains) => (
        <EditableTable
          kind="domain"
          form={DomainForm}
          mayChange={mayChange}
          nameOf={(domain) => domain.name ?? ''}
          label={t('tab.domains')}
          rows={domains}
          idOf={(domain) => domain.name ?? ''}
          columns={[
            {
              label: t('column.name'),
              cell: (domain) => (
                <AnchorLink to="/domains/$name" params={{ name: domain.name ?? '' }}>
                  {domain.name}
                </AnchorLink>
              ),
            },
            { label: t('column.description'), cell: (domain) => domain.description },
            {
              label: t('column.status'),
              cell: (domain) => (
                <StatusBadge
                  tone={domain.is_active ? 'good' : 'idle'}
                  label={domain.is_active ? t('active') : t('inactive')}
                />
              ),
            },
            { label: t('column.limits'), cell: (domain) => <Slots amounts={slotsOf(domain.total_resource_slots)} /> },
          ]}
        />
      )}
    </Query>
  );
}

const tabs = ['users', 'keypairs', 'groups', 'domains'] as const;
type TabName = (typeof tabs)[number];

/** Users, their keypairs, groups and domains, for administrators. */
export function PeoplePage() {
  const { t } = useTranslation('people');
  const { tab: wanted, q = '', sort = '' } = useSearch({ from: '/shell/people' });
  const navigate = useNavigate();
  const tab: TabName = tabs.find((name) => name === wanted) ?? 'users';
  const role = useRole();
  const mayCreate = role === 'superadmin' || role === 'admin';
  const hasFilter = tab === 'users' || tab === 'keypairs';
  const search = (part: { q?: string; sort?: string }) => {
    const next = { q, sort, ...part };
    void navigate({
      to: '/people',
      replace: true,
      search: { tab, ...(next.q ? { q: next.q } : {}), ...(next.sort ? { sort: next.sort } : {}) },
    });
  };
  return (
    <RoleGate roles={['admin', 'superadmin', 'monitor']}>
      <Page title={t('title')} actions={mayCreate && <ButtonLink to="/people/new">{t('create.title')}</ButtonLink>}>
        <Tabs
          value={tab}
          keepMounted={false}
          onChange={(name) =>
            void navigate({ to: '/people', search: name === null || name === 'users' ? {} : { tab: name } })
          }
        >
          <Tabs.List mb="md" aria-label={t('title')}>
            {tabs.map((name) => (
              <Tabs.Tab key={name} value={name}>
                {t(`tab.${name}`)}
              </Tabs.Tab>
            ))}
          </Tabs.List>
          <Tabs.Panel value={tab}>
            {hasFilter && (
              <div style={{ marginBottom: 12 }}>
                <SearchField
                  label={t('filter')}
                  hint={t('filterHint')}
                  clearLabel={t('clear')}
                  value={q}
                  onChange={(text) => search({ q: text })}
                />
              </div>
            )}
            {tab === 'users' && <Users q={q} sort={sort} onSort={(next) => search({ sort: next })} />}
            {tab === 'keypairs' && <Keypairs q={q} sort={sort} onSort={(next) => search({ sort: next })} />}
            {tab === 'groups' && <Groups />}
            {tab === 'domains' && <Domains />}
          </Tabs.Panel>
        </Tabs>
      </Page>
    </RoleGate>
  );
}
export default PeoplePage;
