import { Button, Code, Group, Progress, Stack, Text } from '@mantine/core';
import { useParams, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { ButtonLink } from '../../../components/ButtonLink';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Copy } from '../../../components/Copy';
import { Facts } from '../../../components/Facts';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { StatusBadge } from '../../../components/StatusBadge';
import { Crumbs } from '../../../components/TabbedPage';
import { formatBytes } from '../../../i18n/format';
import { ArtifactActions } from '../parts/ArtifactActions';
import { InstallDialog } from '../parts/InstallDialog';
import { RevisionFiles } from '../parts/RevisionFiles';
import { useArtifact, useRevisionAct } from '../queries';
import { type Artifact, isImportable, isMoving, mountOf, percentOf, type Revision, toneOf } from '../rules';

function Status({ revision }: { revision: Revision }) {
  const { t } = useTranslation('artifacts');
  const percent = percentOf(revision);
  return (
    <Stack gap={2}>
      <StatusBadge
        tone={toneOf(revision)}
        label={t(`status.${revision.status}` as 'status.AVAILABLE', revision.status)}
      />
      {isMoving(revision) && percent !== null && (
        <Progress value={percent} aria-label={t('progressOf', { version: revision.version })} />
      )}
      {revision.is_outdated && <Text size="xs">{t('outdated')}</Text>}
      {revision.status_info && <Text size="xs">{revision.status_info}</Text>}
    </Stack>
  );
}

/** The versions of an artifact, and what can be done with each. */
function Revisions({ artifact, mayChange }: { artifact: Artifact; mayChange: boolean }) {
  const { t, i18n } = useTranslation('artifacts');
  const act = useRevisionAct();
  const [doomed, setDoomed] = useState<Revision | null>(null);
  const [installed, setInstalled] = useState<Revision | null>(null);
  const button = (revision: Revision, what: 'import' | 'cancel') => (
    <Button
      size="compact-xs"
      variant="default"
      disabled={act.isPending}
      aria-label={t(`act.${what}Of`, { version: revision.version })}
      onClick={() => act.mutate({ id: revision.id, act: what })}
    >
      {t(`act.${what}`)}
    </Button>
  );
  return (
    <Card title={t('versions')}>
      <SimpleTable
        label={t('versions')}
        rows={artifact.revisions}
        idOf={(revision) => revision.id}
        minWidth={760}
        columns={[
          { label: t('column.version'), cell: (revision) => <Code>{revision.version}</Code> },
          { label: t('column.status'), cell: (revision) => <Status revision={revision} /> },
          {
            label: t('column.size'),
            cell: (revision) => (revision.size === null ? '–' : formatBytes(revision.size, i18n.language)),
          },
          {
            label: t('column.action'),
            cell: (revision) => (
              <Group gap={4}>
                {revision.status === 'AVAILABLE' && (
                  <>
                    <ButtonLink
                      size="compact-xs"
                      to="/sessions/new"
                      search={{ mounts: mountOf(artifact.name, revision.version) }}
                      aria-label={t('act.useOf', { version: revision.version })}
                    >
                      {t('act.use')}
                    </ButtonLink>
                    <Copy
                      value={mountOf(artifact.name, revision.version)}
                      label={t('act.copyOf', { version: revision.version })}
                    />
                    <ButtonLink
                      size="compact-xs"
                      variant="default"
                      to="/artifacts/$id"
                      params={{ id: artifact.id }}
                      search={{ files: revision.id }}
                      aria-label={t('act.filesOf', { version: revision.version })}
                    >
                      {t('act.files')}
                    </ButtonLink>
                  </>
                )}
                {mayChange && isImportable(revision) && button(revision, 'import')}
                {mayChange && isMoving(revision) && button(revision, 'cancel')}
                {mayChange && artifact.type === 'IMAGE' && revision.status === 'AVAILABLE' && (
                  <Button
                    size="compact-xs"
                    variant="default"
                    aria-label={t('install.openOf', { version: revision.version })}
                    onClick={() => setInstalled(revision)}
                  >
                    {t('install.action')}
                  </Button>
                )}
                {mayChange && revision.status === 'AVAILABLE' && (
                  <Button
                    size="compact-xs"
                    variant="default"
                    aria-label={t('act.cleanupOf', { version: revision.version })}
                    onClick={() => setDoomed(revision)}
                  >
                    {t('act.cleanup')}
                  </Button>
                )}
              </Group>
            ),
          },
        ]}
      />
      {installed !== null && <InstallDialog revision={installed} onClose={() => setInstalled(null)} />}
      {act.isError && doomed === null && <ProblemAlert error={act.error} />}
      <Confirm
        isOpen={doomed !== null}
        title={t('cleanup.title', { version: doomed?.version ?? '' })}
        action={t('act.cleanup')}
        isBusy={act.isPending}
        error={act.error}
        onConfirm={() => act.mutate({ id: doomed?.id ?? '', act: 'cleanup' }, { onSuccess: () => setDoomed(null) })}
        onClose={() => {
          act.reset();
          setDoomed(null);
        }}
      >
        <Text>{t('cleanup.means')}</Text>
      </Confirm>
    </Card>
  );
}

/** One artifact: where it is from, its versions, and what its authors say of it, as text. */
export function ArtifactPage() {
  const { t } = useTranslation('artifacts');
  const { id = '' } = useParams({ strict: false });
  const { files = '' } = useSearch({ from: '/shell/artifacts/$id' });
  const role = useRole();
  const query = useArtifact(id);
  const artifact = query.data;
  return (
    <>
      <Crumbs
        list={
          <AnchorLink to="/artifacts" size="sm">
            {t('title')}
          </AnchorLink>
        }
        here={artifact?.name ?? id}
      />
      <Page
        title={artifact?.name ?? t('one')}
        actions={artifact && role === 'superadmin' && <ArtifactActions artifact={artifact} />}
      >
        <Query query={query}>
          {(data) => (
            <Stack>
              <Card title={t('facts')}>
                <Facts
                  rows={[
                    [t('column.type'), t(`type.${data.type}` as 'type.MODEL', data.type)],
                    [t('column.registry'), data.registry],
                    [t('fact.description'), data.description],
                    [t('fact.viewers'), data.viewers?.join(', ') ?? (data.restricted ? t('restricted') : null)],
                  ]}
                />
              </Card>
              <Revisions artifact={data} mayChange={role === 'superadmin'} />
              {files !== '' && <RevisionFiles key={files} revision={files} />}
              {data.readme && (
                <Card title="README">
                  <Code block style={{ whiteSpace: 'pre-wrap', overflowWrap: 'anywhere' }}>
                    {data.readme}
                  </Code>
                </Card>
              )}
            </Stack>
          )}
        </Query>
      </Page>
    </>
  );
}
export default ArtifactPage;
