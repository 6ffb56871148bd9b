import { Table, Text } from '@mantine/core';
import type { ReactNode } from 'react';
import { useTranslation } from 'react-i18next';

export interface SimpleColumn<T> {
  label: string;
  cell: (row: T) => ReactNode;
}

/** A table of few rows, which scrolls sideways on small screens. */
export function SimpleTable<T>({
  label,
  columns,
  rows,
  idOf,
  minWidth = 560,
}: {
  label: string;
  columns: readonly SimpleColumn<T>[];
  rows: readonly T[];
  idOf: (row: T) => string;
  minWidth?: number;
}) {
  const { t } = useTranslation('components');
  if (rows.length === 0) return <Text c="dimmed">{t('table.none')}</Text>;
  return (
    <Table.ScrollContainer
      minWidth={minWidth}
      scrollAreaProps={{ viewportProps: { tabIndex: 0, role: 'group', 'aria-label': label } }}
    >
      <Table bg="var(--app-surface)" withTableBorder verticalSpacing="xs" aria-label={label}>
        <Table.Thead>
          <Table.Tr>
            {columns.map((column) => (
              <Table.Th key={column.label}>{column.label}</Table.Th>
            ))}
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {rows.map((row) => (
            <Table.Tr key={idOf(row)}>
              {columns.map((column) => (
                <Table.Td key={column.label}>{column.cell(row)}</Table.Td>
              ))}
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Table.ScrollContainer>
  );
}
