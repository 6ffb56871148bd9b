import { Button, Group, Modal, Stack } from '@mantine/core';
import type { FormEvent, ReactNode } from 'react';
import { useTranslation } from 'react-i18next';
import { ProblemAlert } from './ProblemAlert';
import { useTypedName } from './TypedName';

/** A dialog with fields, and what is wrong beside them. */
export function FormDialog({
  title,
  action,
  isBusy,
  error,
  name,
  isDangerous = false,
  size = 'lg',
  onSubmit,
  onClose,
  children,
}: {
  title: string;
  action: string;
  isBusy: boolean;
  /** Null where it is told at a field. */
  error: unknown;
  /** What has to be typed first, for what cannot be undone. */
  name?: string | undefined;
  isDangerous?: boolean;
  size?: 'md' | 'lg';
  onSubmit: () => void;
  onClose: () => void;
  children: ReactNode;
}) {
  const { t } = useTranslation('components');
  const { isTyped, field } = useTypedName(name);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isTyped) onSubmit();
  };
  return (
    <Modal opened onClose={onClose} title={title} size={size} closeButtonProps={{ 'aria-label': t('close') }}>
      <form onSubmit={submit} noValidate>
        <Stack gap="sm">
          {children}
          {field}
          {error !== null && error !== undefined && <ProblemAlert error={error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              {t('cancel')}
            </Button>
            <Button type="submit" loading={isBusy} disabled={!isTyped} {...(isDangerous ? { color: 'red.9' } : {})}>
              {action}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
