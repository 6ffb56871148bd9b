import { Select, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { FormDialog } from '../../../components/FormDialog';
import { nameFault } from '../rules';

interface Props {
  title: string;
  label: string;
  action: string;
  initial?: string;
  /** Storage hosts to choose from, the first one preset. */
  hosts?: readonly string[];
  isBusy: boolean;
  error: unknown;
  onSubmit: (name: string, host: string) => void;
  onClose: () => void;
}

/** Asks for the name of something new. */
export function NameDialog({ label, initial = '', hosts = [], onSubmit, ...dialog }: Props) {
  const { t } = useTranslation('folders');
  const [name, setName] = useState(initial);
  const [host, setHost] = useState(hosts[0] ?? '');
  const [isTouched, setTouched] = useState(false);
  const fault = nameFault(name);
  const submit = () => {
    setTouched(true);
    if (fault === null) onSubmit(name.trim(), host);
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
      {hosts.length > 1 && (
        <Select
          label={t('host')}
          data={[...hosts]}
          value={host}
          allowDeselect={false}
          onChange={(value) => setHost(value ?? '')}
        />
      )}
    </FormDialog>
  );
}
