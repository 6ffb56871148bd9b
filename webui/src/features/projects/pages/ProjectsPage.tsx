import { Badge } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { useProjects } from '../queries';

/** The projects that somebody is in, or sees. */
export function ProjectsPage() {
  const { t } = useTranslation('projects');
  return (
    <Page title={t('title')}>
      <Query query={useProjects()}>
        {(projects) =>
          projects.length === 0 ? (
            <EmptyState title={t('none')}>{t('noneHint')}</EmptyState>
          ) : (
            <SimpleTable
              label={t('title')}
              rows={projects}
              idOf={(project) => project.id}
              columns={[
                {
                  label: t('column.name'),
                  cell: (project) => (
                    <AnchorLink to="/projects/$id" params={{ id: project.id }}>
                      {project.name}
                    </AnchorLink>
                  ),
                },
                { label: t('column.domain'), cell: (project) => project.domain },
                { label: t('column.description'), cell: (project) => project.description },
                {
                  label: t('column.status'),
                  cell: (project) => (
                    <StatusBadge
                      tone={project.isActive ? 'good' : 'idle'}
                      label={project.isActive ? t('active') : t('inactive')}
                    />
                  ),
                },
                ...(projects.some(({ isMine }) => isMine !== undefined)
                  ? [
                      {
                        label: t('column.part'),
                        cell: (project: (typeof projects)[number]) =>
                          project.isMine ? <Badge variant="default">{t('mine')}</Badge> : t('member'),
                      },
                    ]
                  : []),
              ]}
            />
          )
        }
      </Query>
    </Page>
  );
}
export default ProjectsPage;
