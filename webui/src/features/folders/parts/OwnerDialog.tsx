import { Text, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { FormDialog } from '../../../components/FormDialog';
import { useChangeOwner } from '../queries';

/** Gives the folder of a user to another one, after saying what the present owner loses. */
export function OwnerDialog({
  folder,
  onClose,
}: {
  folder: { id: string; name: string; owner: string };
  onClose: () => void;
}) {
  const { t } = useTranslation('folders');
  const change = useChangeOwner();
  const [email, setEmail] = useState('');
  const [isTouched, setTouched] = useState(false);
  const isFaulty = !/^[^@\s]+@[^@\s]+$/.test(email.trim());
  const refused = change.isError ? asProblem(change.error) : null;
  const atField = refused !== null && 'user_email' in refused.fields ? refused.detail || refused.title : null;
  return (
    <FormDialog
      title={t('owner.title', { name: folder.name })}
      action={t('owner.action')}
      isBusy={change.isPending}
      error={atField === null ? refused : null}
      onSubmit={() => {
        setTouched(true);
        if (!isFaulty) change.mutate({ id: folder.id, email: email.trim() }, { onSuccess: onClose });
      }}
      onClose={onClose}
    >
      <Text>{t('owner.loses', { owner: folder.owner })}</Text>
      <TextInput
        label={t('owner.email')}
        type="email"
        data-autofocus
        autoComplete="off"
        value={email}
        error={isTouched && isFaulty ? t('owner.faulty') : atField}
        onChange={(event) => {
          setEmail(event.currentTarget.value);
          change.reset();
        }}
      />
    </FormDialog>
  );
}
export default OwnerDialog;
