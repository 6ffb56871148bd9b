import { Button, Stack } from '@mantine/core';
import { type ReactNode, useId } from 'react';

/** Shows rarer fields of a form on demand, below a button that says so. */
export function Disclosed({
  title,
  isOpen,
  onToggle,
  children,
}: {
  title: string;
  isOpen: boolean;
  onToggle: () => void;
  children: ReactNode;
}) {
  const id = useId();
  return (
    <Stack gap="sm">
      <div>
        <Button variant="default" aria-expanded={isOpen} aria-controls={id} onClick={onToggle}>
          {title}
        </Button>
      </div>
      <Stack gap="sm" id={id} hidden={!isOpen}>
        {isOpen && children}
      </Stack>
    </Stack>
  );
}
