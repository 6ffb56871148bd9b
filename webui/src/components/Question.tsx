import type { UseMutationResult } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { Confirm } from './Confirm';

/** Asks before an act, carries it out, and closes once it has succeeded. */
export function Question<T>({
  act,
  input,
  onClose,
  ...question
}: {
  act: UseMutationResult<unknown, Error, T>;
  input: T;
  title: string;
  action: string;
  /** What is lost, and how many. */
  children: ReactNode;
  isDangerous?: boolean;
  /** What has to be typed first, for what cannot be undone. */
  name?: string;
  onClose: () => void;
}) {
  return (
    <Confirm
      isOpen
      {...question}
      isBusy={act.isPending}
      error={act.error}
      onConfirm={() => act.mutate(input, { onSuccess: onClose })}
      onClose={onClose}
    />
  );
}
