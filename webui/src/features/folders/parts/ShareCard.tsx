import { Button, Group, SegmentedControl, Stack, Switch, Text, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { addressesOf } from '../../../api/text';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import {
  type Share,
  useInvite,
  useSetCloneable,
  useSetShare,
  useShares,
  useShareWithMembers,
  useUnshareWithMembers,
} from '../queries';
import { otherPermission, permissionOf } from '../rules';

/** Who else uses a folder, and who is invited to; of a project's folder, what single members may do. */
export function ShareCard({
  id,
  name,
  isCloneable,
  isOfProject,
}: {
  id: string;
  name: string;
  isCloneable: boolean;
  isOfProject: boolean;
}) {
  const setCloneable = useSetCloneable();
  const { t } = useTranslation('folders');
  const shares = useShares(id);
  const [invite, shareWithMembers] = [useInvite(), useShareWithMembers()];
  const add = isOfProject ? shareWithMembers : invite;
  const [change, end] = [useSetShare(), useSetShare()];
  const unshare = useUnshareWithMembers();
  const isBusy = change.isPending || unshare.isPending;
  const [ended, setEnded] = useState<Share | null>(null);
  const [text, setText] = useState('');
  const [permission, setPermission] = useState<'ro' | 'rw'>('ro');
  const [isTouched, setTouched] = useState(false);
  const { emails, faulty } = addressesOf(text);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setTouched(true);
    if (faulty.length === 0 && emails.length > 0) {
      add.mutate(
        { id, emails, permission },
        {
          onSuccess: () => {
            setText('');
            setTouched(false);
          },
        },
      );
    }
  };
  return (
    <Card title={t('share.title')}>
      <Switch
        mb="sm"
        label={t('share.cloneable')}
        checked={isCloneable}
        disabled={setCloneable.isPending}
        onChange={(event) => setCloneable.mutate({ id, isCloneable: event.currentTarget.checked })}
      />
      {setCloneable.isError && <ProblemAlert error={setCloneable.error} />}
      <Stack gap="sm">
        <Query query={shares} rows={1}>
          {(list) =>
            list.length === 0 ? (
              <Text size="sm" c="dimmed">
                {t(isOfProject ? 'share.noMember' : 'share.nobody')}
              </Text>
            ) : (
              <Stack gap="xs">
                {isOfProject && (
                  <Text size="sm" c="dimmed">
                    {t('share.others')}
                  </Text>
                )}
                {list.map((share) => (
                  <Group key={share.shared_to.uuid} justify="space-between" gap="xs">
                    <Text size="sm">{t(`share.${permissionOf(share.perm)}`, { email: share.shared_to.email })}</Text>
                    <Group gap="xs">
                      <Button
                        size="xs"
                        variant="default"
                        disabled={isBusy}
                        onClick={() =>
                          change.mutate({
                            id,
                            user: share.shared_to.uuid,
                            permission: otherPermission(share.perm),
                          })
                        }
                      >
                        {t(permissionOf(share.perm) === 'ro' ? 'share.allowWriting' : 'share.onlyReading')}
                      </Button>
                      <Button
                        size="xs"
                        variant="default"
                        disabled={isBusy}
                        onClick={() => {
                          if (isOfProject) unshare.mutate({ id, email: share.shared_to.email });
                          else {
                            end.reset();
                            setEnded(share);
                          }
                        }}
                      >
                        {t(isOfProject ? 'share.asOthers' : 'share.end')}
                      </Button>
                    </Group>
                  </Group>
                ))}
              </Stack>
            )
          }
        </Query>
        {change.isError && <ProblemAlert error={change.error} />}
        {ended !== null && (
          <Confirm
            isOpen
            title={t('shares.endTitle', { folder: name, who: ended.shared_to.email })}
            action={t('share.end')}
            isBusy={end.isPending}
            error={end.error}
            onConfirm={() =>
              end.mutate({ id, user: ended.shared_to.uuid, permission: null }, { onSuccess: () => setEnded(null) })
            }
            onClose={() => setEnded(null)}
          >
            <Text>{t('shares.endLoses')}</Text>
          </Confirm>
        )}
        {unshare.isError && <ProblemAlert error={unshare.error} />}
        <form onSubmit={submit}>
          <Stack gap="xs">
            <TextInput
              label={t(isOfProject ? 'share.members' : 'share.emails')}
              description={t('share.emailsHint')}
              value={text}
              autoComplete="off"
              error={
                isTouched &&
                (faulty.length > 0
                  ? t('share.faulty', { words: faulty.join(', ') })
                  : emails.length === 0
                    ? t('fault.empty')
                    : null)
              }
              onChange={(event) => setText(event.currentTarget.value)}
            />
            <Group justify="space-between">
              <SegmentedControl
                aria-label={t('share.permission')}
                value={permission}
                onChange={(value) => setPermission(value === 'rw' ? 'rw' : 'ro')}
                data={[
                  { value: 'ro', label: t('access.ro') },
                  { value: 'rw', label: t('access.rw') },
                ]}
              />
              <Button type="submit" loading={add.isPending}>
                {t(isOfProject ? 'share.set' : 'share.invite')}
              </Button>
            </Group>
            {add.isError && <ProblemAlert error={add.error} />}
            {invite.isSuccess && (
              <Text size="sm" role="status">
                {t('share.invited', { count: invite.data.length })}
              </Text>
            )}
            {shareWithMembers.isSuccess && (
              <Text size="sm" role="status">
                {t('share.isSet', { emails: shareWithMembers.data.join(', ') })}
              </Text>
            )}
          </Stack>
        </form>
      </Stack>
    </Card>
  );
}
export default ShareCard;
