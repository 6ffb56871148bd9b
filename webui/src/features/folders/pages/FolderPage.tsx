import { Breadcrumbs, Button, Grid, Stack, Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { lazy, Suspense, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Copy } from '../../../components/Copy';
import { EmptyState } from '../../../components/EmptyState';
import { Facts } from '../../../components/Facts';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { StatusBadge } from '../../../components/StatusBadge';
import { formatBytes, formatNumber } from '../../../i18n/format';
import { Files } from '../parts/Files';
import { NameDialog } from '../parts/NameDialog';
import {
  folderOptions,
  useCloneFolder,
  useFolderQuota,
  useLeaveFolder,
  useMayLeave,
  useRenameFolder,
  useTrashFolder,
} from '../queries';
import { isBeingFilled, isFull, joinPath, mayShare, permissionOf } from '../rules';

const ShareCard = lazy(() => import('../parts/ShareCard'));

interface Details {
  id: string;
  name: string;
  host: string;
  status: string;
  is_owner: boolean;
  ownership_type: string;
  permission: string;
  usage_mode: string;
  cloneable: boolean;
  creator: string;
  created_at: string;
  user_email: string | null;
  group_name: string | null;
  used_bytes: number | null;
  max_size: number | null;
  num_files: number | null;
}

function Actions({ folder }: { folder: Details }) {
  const { t } = useTranslation('folders');
  const navigate = useNavigate();
  const [dialog, setDialog] = useState<'rename' | 'clone' | 'trash' | 'leave' | null>(null);
  const [rename, clone, trash, leave] = [useRenameFolder(), useCloneFolder(), useTrashFolder(), useLeaveFolder()];
  const mayControl = useRole() === 'superadmin' || folder.is_owner;
  const mayLeave = useMayLeave(folder.id, !folder.is_owner && folder.ownership_type === 'user');
  const open = (next: 'rename' | 'clone' | 'trash' | 'leave') => {
    for (const change of [rename, clone, trash, leave]) change.reset(); // what the last try met is of no interest
    setDialog(next);
  };
  const close = () => setDialog(null);
  const toList = () => void navigate({ to: '/folders' });
  return (
    <>
      {mayControl && (
        <Button variant="default" onClick={() => open('rename')}>
          {t('rename.open')}
        </Button>
      )}
      {folder.cloneable && (
        <Button variant="default" onClick={() => open('clone')}>
          {t('clone.open')}
        </Button>
      )}
      {mayControl && (
        <Button variant="default" onClick={() => open('trash')}>
          {t('trashIt.open')}
        </Button>
      )}
      {mayLeave && (
        <Button variant="default" onClick={() => open('leave')}>
          {t('leave.open')}
        </Button>
      )}
      {dialog === 'rename' && (
        <NameDialog
          title={t('rename.title')}
          label={t('create.name')}
          action={t('rename.action')}
          initial={folder.name}
          isBusy={rename.isPending}
          error={rename.error}
          onClose={close}
          onSubmit={(name) => rename.mutate({ id: folder.id, name }, { onSuccess: close })}
        />
      )}
      {dialog === 'clone' && (
        <NameDialog
          title={t('clone.title', { name: folder.name })}
          label={t('clone.name')}
          action={t('clone.action')}
          initial={`${folder.name}-copy`}
          isBusy={clone.isPending}
          error={clone.error}
          onClose={close}
          onSubmit={(name) =>
            clone.mutate(
              { id: folder.id, name },
              {
                onSuccess: (made) => {
                  close();
                  void navigate({ to: '/folders/$id', params: { id: made.id } });
                },
              },
            )
          }
        />
      )}
      <Confirm
        isOpen={dialog === 'trash'}
        title={t('trashIt.title', { name: folder.name })}
        action={t('trashIt.action')}
        isBusy={trash.isPending}
        error={trash.error}
        onClose={close}
        onConfirm={() => trash.mutate(folder.id, { onSuccess: toList })}
      >
        <Text>{t('trashIt.detail')}</Text>
      </Confirm>
      <Confirm
        isOpen={dialog === 'leave'}
        title={t('leave.title', { name: folder.name })}
        action={t('leave.action')}
        isBusy={leave.isPending}
        error={leave.error}
        onClose={close}
        onConfirm={() => leave.mutate(folder.id, { onSuccess: toList })}
      >
        <Text>{t('leave.detail')}</Text>
      </Confirm>
    </>
  );
}

/** What the owner of a folder keeps on its storage host, of how much: what uploads are refused by. */
function OwnerQuota({ id, host }: { id: string; host: string }) {
  const { t, i18n } = useTranslation('folders');
  const { data } = useFolderQuota(id, host);
  if (data === undefined) return <span>–</span>;
  const quota = { usedBytes: data.used_bytes, limitBytes: data.limit_bytes };
  const used = formatBytes(data.used_bytes, i18n.language);
  if (quota.limitBytes === null) return <span>{used}</span>;
  const amounts = t('quota.usedOf', { used, limit: formatBytes(quota.limitBytes, i18n.language) });
  return (
    <Stack gap={2}>
      <span>{amounts}</span>
      {isFull(quota) && <StatusBadge tone="bad" label={t('quota.full')} />}
    </Stack>
  );
}

/** One folder: its files, who uses it, and what can be done with it. */
export function FolderPage() {
  const { t, i18n } = useTranslation('folders');
  const { id = '', _splat = '' } = useParams({ strict: false });
  const { show = '' } = useSearch({ strict: false }) as { show?: string };
  const role = useRole();
  const query = useQuery(folderOptions(id));
  const folder = query.data;
  const path = joinPath(_splat);
  return (
    <>
      <Breadcrumbs mb="xs">
        <AnchorLink to="/folders" size="sm">
          {t('title')}
        </AnchorLink>
        <span>{folder?.name ?? id}</span>
      </Breadcrumbs>
      <Page title={folder?.name ?? t('one')} actions={folder && <Actions folder={folder} />}>
        <Query query={query}>
          {(details) => (
            <Grid>
              <Grid.Col span={{ base: 12, md: 8 }}>
                {isBeingFilled(details.status) ? (
                  <EmptyState title={t('filling')}>{t('fillingHint')}</EmptyState>
                ) : (
                  <Files
                    key={details.id}
                    id={details.id}
                    name={details.name}
                    path={path}
                    shown={show}
                    mayWrite={permissionOf(details.permission) === 'rw'}
                  />
                )}
              </Grid.Col>
              <Grid.Col span={{ base: 12, md: 4 }}>
                <Stack>
                  <Card title={t('facts')}>
                    <Facts
                      rows={[
                        [t('column.owner'), details.group_name ?? details.user_email ?? details.creator],
                        [t('column.access'), t(`access.${permissionOf(details.permission)}`)],
                        [
                          t('fact.used'),
                          details.used_bytes === null ? null : formatBytes(details.used_bytes, i18n.language),
                        ],
                        [t('fact.limit'), details.max_size ? formatBytes(details.max_size, i18n.language) : null],
                        [
                          t('fact.files'),
                          details.num_files === null ? null : formatNumber(details.num_files, i18n.language),
                        ],
                        [
                          t('quota.ofOwner'),
                          // Others than the owner and members of its project are refused it.
                          details.is_owner || details.ownership_type === 'group' ? (
                            <OwnerQuota key="quota" id={details.id} host={details.host} />
                          ) : null,
                        ],
                        [t('column.host'), details.host],
                        [t('fact.usage'), details.usage_mode],
                        [t('column.created'), <RelativeTime key="created" at={details.created_at} />],
                        [
                          t('fact.mount'),
                          <span key="mount">
                            <code>-m {details.name}</code>{' '}
                            <Copy value={`-m ${details.name}`} label={t('fact.copyMount')} />
                          </span>,
                        ],
                      ]}
                    />
                  </Card>
                  {mayShare(details, role) && !isBeingFilled(details.status) && (
                    <Suspense>
                      <ShareCard
                        id={details.id}
                        name={details.name}
                        isCloneable={details.cloneable}
                        isOfProject={details.ownership_type === 'group'}
                      />
                    </Suspense>
                  )}
                </Stack>
              </Grid.Col>
            </Grid>
          )}
        </Query>
      </Page>
    </>
  );
}
export default FolderPage;
