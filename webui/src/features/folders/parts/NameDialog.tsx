import { TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { FormDialog } from '../../../components/FormDialog';
import { nameFault } from '../rules';

interface Props {
  title: string;
  label: string;
  action: string;
  initial?: string;
  isBusy: boolean;
  error: unknown;
  onSubmit: (name: string) => void;
  onClose: () => void;
}

/** Asks for the name of something new. */
export function NameDialog({ label, initial = '', onSubmit, ...dialog }: Props) {
  const { t } = useTranslation('folders');
  const [name, setName] = useState(initial);
  const [isTouched, setTouched] = useState(false);
  const fault = nameFault(name);
  const submit = () => {
    setTouched(true);
    if (fault === null) onSubmit(name.trim());
  };
  return (
    <FormDialog {...dialog} size="md" onSubmit={submit}>
      <TextInput
        label={label}
        data-autofocus
        value={name}
        maxLength={255}
        autoComplete="off"
        error={isTouched && fault !== null ? t(`fault.${fault}`) : null}
        onChange={(event) => setName(event.currentTarget.value)}
      />
    </FormDialog>
  );
}
