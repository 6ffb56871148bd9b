import { Badge, Stack, Text, Title } from '@mantine/core';
import { useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { useMe, useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { type Column, DataTable } from '../../../components/DataTable';
import { DotfilesCard } from '../../../components/dotfiles/DotfilesCard';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query, Waiting } from '../../../components/Query';
import { SearchField } from '../../../components/SearchField';
import { StatusBadge } from '../../../components/StatusBadge';
import { Crumbs } from '../../../components/TabbedPage';
import { AddMembers } from '../parts/AddMembers';
import { MemberActions } from '../parts/MemberActions';
import { type Member, type Project, useMembers, useProject } from '../queries';
import { type Rights, rightsOf } from '../rules';

function Members({ project, rights }: { project: Project; rights: Rights }) {
  const { t } = useTranslation('projects');
  const { q = '', sort = '' } = useSearch({ from: '/shell/projects/$id' });
  const navigate = useNavigate();
  const me = useMe().data?.user?.uuid;
  const order = sort || 'email';
  const pages = useMembers(project.id, q, order);
  const search = (part: { q?: string; sort?: string }) => {
    const next = { q, sort, ...part };
    void navigate({
      to: '/projects/$id',
      params: { id: project.id },
      replace: true,
      search: { ...(next.q ? { q: next.q } : {}), ...(next.sort ? { sort: next.sort } : {}) },
    });
  };
  const columns: Column<Member>[] = [
    { id: 'email', label: t('column.email'), width: '2fr', orderBy: 'email', cell: (row) => row.email },
    {
      id: 'name',
      label: t('column.fullName'),
      width: '1.5fr',
      orderBy: 'full_name',
      isSecondary: true,
      cell: (row) => row.name,
    },
    {
      id: 'part',
      label: t('column.memberPart'),
      width: '150px',
      cell: (row) => (row.isAdmin ? <Badge variant="default">{t('admin')}</Badge> : t('member')),
    },
    {
      id: 'status',
      label: t('column.status'),
      width: '130px',
      orderBy: 'status',
      isSecondary: true,
      cell: ({ status }) => (
        <StatusBadge
          tone={status === 'active' ? 'good' : 'idle'}
          label={t(`userStatus.${status}` as 'userStatus.active', status)}
        />
      ),
    },
    ...(rights.changes
      ? [
          {
            id: 'act',
            label: t('column.act'),
            width: '260px',
            isSecondary: true,
            cell: (row: Member) => (
              <MemberActions project={project} member={row} rights={rights} isSelf={row.uuid === me} />
            ),
          },
        ]
      : []),
  ];
  return (
    <Stack gap="sm">
      <SearchField label={t('filter')} clearLabel={t('clear')} value={q} onChange={(text) => search({ q: text })} />
      {pages.error !== null && <ProblemAlert error={pages.error} onRetry={pages.refetch} />}
      {pages.total === undefined && pages.error === null && <Waiting rows={4} />}
      {pages.total === 0 && <EmptyState title={t('nobody')} />}
      {pages.total !== undefined && pages.total > 0 && (
        <DataTable
          label={t('members')}
          columns={columns}
          pages={pages}
          idOf={(row) => row.uuid}
          nameOf={(row) => row.email}
          order={order}
          onOrder={(next) => search({ sort: next })}
        />
      )}
    </Stack>
  );
}

function Content({ project }: { project: Project }) {
  const { t } = useTranslation('projects');
  const rights = rightsOf(useRole(), project.isMine === true);
  return (
    <Page title={project.name} badge={project.isMine && <Badge variant="default">{t('mine')}</Badge>}>
      {project.description && <Text>{project.description}</Text>}
      {rights.changes && (
        <Card title={t('add.title')}>
          <AddMembers project={project} />
        </Card>
      )}
      {rights.sees ? (
        // Not in a card, where the table would be too narrow for its columns on most screens.
        <Stack component="section" gap="xs" aria-label={t('members')}>
          <Title order={2}>{t('members')}</Title>
          <Text size="sm" c="dimmed">
            {t('adminHint')}
          </Text>
          <Members project={project} rights={rights} />
        </Stack>
      ) : (
        <Text>{t('notYours')}</Text>
      )}
      <DotfilesCard owner={{ scope: 'group', group: project.id }} mayChange={rights.changes} />
    </Page>
  );
}

/** One project: who is in it, who administrates it, and the dotfiles of its sessions. */
export function ProjectPage() {
  const { t } = useTranslation('projects');
  const { id } = useParams({ from: '/shell/projects/$id' });
  const project = useProject(id);
  return (
    <>
      <Crumbs list={<AnchorLink to="/projects">{t('title')}</AnchorLink>} here={project.data?.name ?? ''} />
      {project.data ? (
        <Query query={project}>{(found) => found && <Content project={found} />}</Query>
      ) : (
        <Page title={t('one')}>
          <Query query={project}>{() => <EmptyState title={t('notThere')}>{t('notThereHint')}</EmptyState>}</Query>
        </Page>
      )}
    </>
  );
}
export default ProjectPage;
