import { Button, Group, List, Stack, Text } from '@mantine/core';
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { Query } from '../../../components/Query';
import { type Member, type Project, useChangeMembers, useLosses } from '../queries';
import { mayRemove, type Rights } from '../rules';

interface DialogProps {
  project: Project;
  member: Member;
  isSelf: boolean;
  onClose: () => void;
}

function RemoveDialog({ project, member, isSelf, onClose }: DialogProps) {
  const { t } = useTranslation('projects');
  const navigate = useNavigate();
  const losses = useLosses(project.id, member.uuid);
  const change = useChangeMembers(project.id);
  const { email } = member;
  const done = () => {
    onClose();
    if (isSelf) void navigate({ to: '/projects' });
  };
  return (
    <Confirm
      isOpen
      title={t('removeName', { email })}
      action={t('remove')}
      isBusy={change.isPending}
      error={change.error}
      onConfirm={() => change.mutate({ mode: 'remove', uuids: [member.uuid] }, { onSuccess: done })}
      onClose={onClose}
    >
      <Text>{t('loses.means', { email, project: project.name })}</Text>
      <Query query={losses} rows={3}>
        {({ sessions, folders }) => (
          <List>
            <List.Item>{t('loses.new')}</List.Item>
            {folders > 0 && <List.Item>{t('loses.folders', { count: folders })}</List.Item>}
            {member.isAdmin && <List.Item>{t('loses.admin')}</List.Item>}
            {sessions > 0 && <List.Item>{t('loses.sessions', { count: sessions })}</List.Item>}
          </List>
        )}
      </Query>
      {isSelf && <Text fw={600}>{t('leave')}</Text>}
    </Confirm>
  );
}

function PartDialog({ project, member, onClose }: DialogProps) {
  const { t } = useTranslation('projects');
  const change = useChangeMembers(project.id);
  const { email } = member;
  const act = member.isAdmin ? 'dismiss' : 'appoint';
  return (
    <Confirm
      isOpen
      title={t(`${act}Name`, { email })}
      action={t(act)}
      isDangerous={member.isAdmin}
      isBusy={change.isPending}
      error={change.error}
      onConfirm={() =>
        change.mutate(
          { mode: member.isAdmin ? 'remove-admins' : 'add-admins', uuids: [member.uuid] },
          { onSuccess: onClose },
        )
      }
      onClose={onClose}
    >
      <Stack>
        <Text>{t(`${act}Means`, { email, project: project.name })}</Text>
      </Stack>
    </Confirm>
  );
}

const dialogs = { remove: RemoveDialog, part: PartDialog };

/** What may be done with a member of a project. Each act says what it means before. */
export function MemberActions({
  project,
  member,
  rights,
  isSelf,
}: {
  project: Project;
  member: Member;
  rights: Rights;
  isSelf: boolean;
}) {
  const { t } = useTranslation('projects');
  const [asked, setAsked] = useState<keyof typeof dialogs | null>(null);
  const { email } = member;
  const act = member.isAdmin ? 'dismiss' : 'appoint';
  const Dialog = asked === null ? null : dialogs[asked];
  return (
    <Group gap={4}>
      {rights.appoints && (
        <Button
          size="compact-xs"
          variant="default"
          aria-label={t(`${act}Name`, { email })}
          onClick={() => setAsked('part')}
        >
          {t(act)}
        </Button>
      )}
      {mayRemove(rights, member, isSelf) && (
        <Button
          size="compact-xs"
          variant="default"
          aria-label={t('removeName', { email })}
          onClick={() => setAsked('remove')}
        >
          {t('remove')}
        </Button>
      )}
      {Dialog !== null && <Dialog project={project} member={member} isSelf={isSelf} onClose={() => setAsked(null)} />}
    </Group>
  );
}
