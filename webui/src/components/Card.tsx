import { Paper, Title } from '@mantine/core';
import type { ReactNode } from 'react';

/** A part of a page with its heading. */
export function Card({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Paper withBorder p="md" bg="var(--app-surface)" component="section" aria-label={title}>
      <Title order={2} mb="xs">
        {title}
      </Title>
      {children}
    </Paper>
  );
}
