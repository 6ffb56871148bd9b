import { Button, Group, Modal, Stack } from '@mantine/core';
import type { ReactNode } from 'react';
import { useTranslation } from 'react-i18next';
import { ProblemAlert } from './ProblemAlert';
import { useTypedName } from './TypedName';

interface Props {
  isOpen: boolean;
  title: string;
  /** What is lost, and how many. */
  children: ReactNode;
  action: string;
  isBusy?: boolean;
  error?: unknown;
  isDangerous?: boolean;
  /** What has to be typed first, for what cannot be undone. */
  name?: string;
  onConfirm: () => void;
  onClose: () => void;
}

/** Asks before an act that loses something. */
export function Confirm({
  isOpen,
  title,
  children,
  action,
  isBusy,
  error,
  isDangerous = true,
  name,
  onConfirm,
  onClose,
}: Props) {
  const { t } = useTranslation('components');
  const { isTyped, field } = useTypedName(name);
  return (
    <Modal opened={isOpen} onClose={onClose} title={title} closeButtonProps={{ 'aria-label': t('close') }}>
      <Stack>
        {children}
        {field}
        {error !== undefined && error !== null && <ProblemAlert error={error} />}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose} data-autofocus={name === undefined}>
            {t('cancel')}
          </Button>
          <Button
            {...(isDangerous ? { color: 'red.9' } : {})}
            loading={isBusy ?? false}
            disabled={!isTyped}
            onClick={onConfirm}
          >
            {action}
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}
