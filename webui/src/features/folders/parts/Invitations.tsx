import { Button, Group, Paper, Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { useAnswerInvitation, useInvitations } from '../queries';
import { permissionOf } from '../rules';

/** What others offer to share, each as a sentence. Shows nothing where there is nothing. */
export function Invitations() {
  const { t } = useTranslation('folders');
  const query = useInvitations();
  const answer = useAnswerInvitation();
  const pending = (query.data ?? []).filter((invitation) => invitation.state === 'pending');
  if (query.isError) return <ProblemAlert error={query.error} onRetry={() => void query.refetch()} />;
  if (pending.length === 0) return null;
  return (
    <Paper withBorder p="md" component="section" aria-label={t('invitations')}>
      <Stack gap="xs">
        {pending.map((invitation) => (
          <Group key={invitation.id} justify="space-between">
            <Text>
              {t(`invited.${permissionOf(invitation.perm)}`, {
                inviter: invitation.inviter,
                folder: invitation.vfolder_name,
              })}
            </Text>
            <Group gap="xs">
              <Button
                size="xs"
                loading={answer.isPending}
                onClick={() => answer.mutate({ id: invitation.id, isAccepted: true })}
              >
                {t('accept')}
              </Button>
              <Button
                size="xs"
                variant="default"
                disabled={answer.isPending}
                onClick={() => answer.mutate({ id: invitation.id, isAccepted: false })}
              >
                {t('decline')}
              </Button>
            </Group>
          </Group>
        ))}
        {answer.isError && <ProblemAlert error={answer.error} />}
      </Stack>
    </Paper>
  );
}
