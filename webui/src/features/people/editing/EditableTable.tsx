import { Button, Group, Stack, Text } from '@mantine/core';
import { type ComponentType, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Confirm } from '../../../components/Confirm';
import { type SimpleColumn, SimpleTable } from '../../../components/SimpleTable';
import { type ListedKind, useRemove } from './queries';

export interface FormProps<T> {
  /** What is changed; null for what is new. */
  row: T | null;
  onClose: () => void;
}

/** Kinds whose removal cannot be undone: their name is asked for. A preset is only a proposal, easily made again. */
const isGrave: Record<ListedKind, boolean> = {
  keypair: true,
  user: true,
  project: true,
  preset: false,
  resourceGroup: true,
  domain: true,
  group: true,
};

function RemoveDialog({
  kind,
  id,
  name,
  onClose,
}: {
  kind: ListedKind;
  id: string;
  name: string;
  onClose: () => void;
}) {
  const { t } = useTranslation('editing');
  const remove = useRemove(kind);
  return (
    <Confirm
      isOpen
      title={t('removeTitle', { name })}
      action={t('remove')}
      isBusy={remove.isPending}
      error={remove.error}
      {...(isGrave[kind] ? { name } : {})}
      onConfirm={() => remove.mutate(id, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Text>{t(`removeMeans.${kind}`)}</Text>
    </Confirm>
  );
}

/** A table of objects that those who may create, change and delete. */
export function EditableTable<T>({
  kind,
  label,
  rows,
  columns,
  idOf,
  nameOf,
  form: Form,
  mayChange,
  mayRemove = mayChange,
  minWidth,
}: {
  kind: ListedKind;
  label: string;
  rows: readonly T[];
  columns: readonly SimpleColumn<T>[];
  idOf: (row: T) => string;
  nameOf: (row: T) => string;
  form: ComponentType<FormProps<T>>;
  mayChange: boolean;
  mayRemove?: boolean;
  minWidth?: number;
}) {
  const { t } = useTranslation('editing');
  const [edited, setEdited] = useState<{ row: T | null } | null>(null);
  const [doomed, setDoomed] = useState<T | null>(null);
  const actions: SimpleColumn<T> = {
    label: t('actions'),
    cell: (row) => (
      <Group gap={4} wrap="nowrap">
        <Button
          size="compact-xs"
          variant="default"
          aria-label={t('changeOf', { name: nameOf(row) })}
          onClick={() => setEdited({ row })}
        >
          {t('change')}
        </Button>
        {mayRemove && (
          <Button
            size="compact-xs"
            variant="default"
            aria-label={t('removeOf', { name: nameOf(row) })}
            onClick={() => setDoomed(row)}
          >
            {t('remove')}
          </Button>
        )}
      </Group>
    ),
  };
  return (
    <Stack gap="xs">
      <SimpleTable
        label={label}
        rows={rows}
        idOf={idOf}
        columns={[...columns, ...(mayChange ? [actions] : [])]}
        {...(minWidth === undefined ? {} : { minWidth })}
      />
      {mayChange && (
        <Group>
          <Button size="xs" variant="default" onClick={() => setEdited({ row: null })}>
            {t(`new.${kind}`)}
          </Button>
        </Group>
      )}
      {edited !== null && <Form row={edited.row} onClose={() => setEdited(null)} />}
      {doomed !== null && (
        <RemoveDialog kind={kind} id={idOf(doomed)} name={nameOf(doomed)} onClose={() => setDoomed(null)} />
      )}
    </Stack>
  );
}
