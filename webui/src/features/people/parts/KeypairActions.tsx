import { Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { Query } from '../../../components/Query';
import { Question } from '../../../components/Question';
import { RowActions } from '../../../components/RowActions';
import { AccessKeyForm } from '../editing/forms';
import { usePerson, useRemove, useSetMainKeypair } from '../editing/queries';
import { useRotateKeypair, useSetKeypairActive } from '../queries';
import { KeypairSecrets } from './NewKeypairDialog';

interface DialogProps {
  accessKey: string;
  onClose: () => void;
}

function StatusDialog({ accessKey, isActive, onClose }: DialogProps & { isActive: boolean }) {
  const { t } = useTranslation('people');
  const wanted = isActive ? 'inactive' : 'active';
  return (
    <Question
      act={useSetKeypairActive()}
      input={{ accessKey, isActive: !isActive }}
      title={t(`act.${wanted}Name`, { email: accessKey })}
      action={t(`act.${wanted}`)}
      isDangerous={isActive}
      onClose={onClose}
    >
      <Text>{t(`keypair.${wanted}Means`)}</Text>
    </Question>
  );
}

function MainDialog({ accessKey, email, onClose }: DialogProps & { email: string }) {
  const { t } = useTranslation('editing');
  const person = usePerson(email);
  return (
    <Question
      act={useSetMainKeypair()}
      input={{ email, accessKey }}
      title={t('main.title', { accessKey })}
      action={t('main.action')}
      isDangerous={false}
      onClose={onClose}
    >
      <Text>{t('main.means', { email })}</Text>
      <Query query={person} rows={1}>
        {(user) => <Text>{t('main.now', { accessKey: user?.main_access_key ?? '–' })}</Text>}
      </Query>
    </Question>
  );
}

function RotateDialog({ accessKey, onClose }: DialogProps) {
  const { t } = useTranslation('people');
  const rotate = useRotateKeypair();
  const keypair = rotate.data?.rotate_keypair?.keypair;
  if (keypair)
    return <KeypairSecrets title={t('keypair.rotated', { accessKey })} keypair={keypair} onClose={onClose} />;
  // Not a question that closes: the new secret takes its place.
  return (
    <Confirm
      isOpen
      title={t('keypair.rotateName', { accessKey })}
      action={t('keypair.rotate')}
      isBusy={rotate.isPending}
      error={rotate.error}
      onConfirm={() => rotate.mutate(accessKey)}
      onClose={onClose}
    >
      <Text>{t('keypair.rotateMeans')}</Text>
    </Confirm>
  );
}

function DeleteDialog({ accessKey, onClose }: DialogProps) {
  const { t } = useTranslation('people');
  return (
    <Question
      act={useRemove('accessKey')}
      input={accessKey}
      title={t('keypair.deleteName', { accessKey })}
      action={t('keypair.delete')}
      name={accessKey}
      onClose={onClose}
    >
      <Text>{t('keypair.deleteMeans')}</Text>
    </Question>
  );
}

/** What administrators may do with a keypair. Each act says what it means before. */
export function KeypairActions({
  accessKey,
  email,
  isActive,
}: {
  accessKey: string;
  email: string;
  isActive: boolean;
}) {
  const { t } = useTranslation('people');
  const { t: editing } = useTranslation('editing');
  const wanted = isActive ? 'inactive' : 'active';
  const of = (onClose: () => void) => ({ accessKey, onClose });
  return (
    <RowActions
      first={{ label: t(`act.${wanted}`), dialog: (close) => <StatusDialog {...of(close)} isActive={isActive} /> }}
      firstLabel={t(`act.${wanted}Name`, { email: accessKey })}
      moreLabel={t('act.moreName', { email: accessKey })}
      others={[
        { label: t('act.change'), dialog: (close) => <AccessKeyForm {...of(close)} /> },
        ...(isActive
          ? [
              {
                label: editing('main.action'),
                dialog: (close: () => void) => <MainDialog {...of(close)} email={email} />,
              },
            ]
          : []),
        { label: t('keypair.rotate'), dialog: (close) => <RotateDialog {...of(close)} /> },
        { label: t('keypair.delete'), dialog: (close) => <DeleteDialog {...of(close)} /> },
      ]}
    />
  );
}
