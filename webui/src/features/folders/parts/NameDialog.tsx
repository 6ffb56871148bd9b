import { Button, Group, Modal, Select, Stack, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { ProblemAlert } from '../../../components/ProblemAlert';
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
export function NameDialog({
  title,
  label,
  action,
  initial = '',
  hosts = [],
  isBusy,
  error,
  onSubmit,
  onClose,
}: Props) {
  const { t } = useTranslation('folders');
  const [name, setName] = useState(initial);
  const [host, setHost] = useState(hosts[0] ?? '');
  const [isTouched, setTouched] = useState(false);
  const fault = nameFault(name);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setTouched(true);
    if (fault === null) onSubmit(name.trim(), host);
  };
  return (
    <Modal opened onClose={onClose} title={title} closeButtonProps={{ 'aria-label': t('close') }}>
      <form onSubmit={submit}>
        <Stack>
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
          {error !== null && error !== undefined && <ProblemAlert error={error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              {t('cancel')}
            </Button>
            <Button type="submit" loading={isBusy}>
              {action}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
