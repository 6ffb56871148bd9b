import {
  Button,
  Checkbox,
  Group,
  Modal,
  NativeSelect,
  Stack,
  TagsInput,
  Text,
  Textarea,
  TextInput,
} from '@mantine/core';
import type { UseQueryResult } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { placesOf } from '../rules';
import { type Field, type HostPermissions, type Props, propsOf, type Value } from './fields';
import { HostsControl } from './HostsControl';
import type Messages from './locale/en.json';
import { type Kind, useSave } from './queries';

type Label = keyof (typeof Messages)['field'];
type Hint = keyof (typeof Messages)['hint'];

interface ControlProps {
  field: Field;
  value: Value;
  error: string | undefined;
  onChange: (value: Value) => void;
}

/** One field of a form, with its label, what is meant by it, and what is wrong with it. */
function Control({ field, value, error, onChange }: ControlProps) {
  const { t, i18n } = useTranslation('editing');
  const words = field.words ?? field.name;
  const common = {
    label: t(`field.${words as Label}`),
    description: i18n.exists(`editing:hint.${words}`) ? t(`hint.${words as Hint}`) : undefined,
    error,
  };
  const text = {
    ...common,
    value: String(value),
    autoComplete: 'off',
    required: field.isRequired ?? false,
    withAsterisk: false,
  };
  switch (field.control) {
    case 'check':
      return (
        <Checkbox {...common} checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} />
      );
    case 'choice':
      return (
        <NativeSelect
          {...common}
          data={[...(field.choices ?? [])]}
          value={String(value)}
          onChange={(event) => onChange(event.currentTarget.value)}
        />
      );
    case 'tags':
      return (
        <TagsInput
          {...common}
          data={(field.choices ?? []) as string[]}
          value={value as string[]}
          onChange={onChange}
          acceptValueOnBlur
        />
      );
    case 'hosts':
      return (
        <HostsControl
          {...common}
          value={value as HostPermissions}
          hosts={(field.choices ?? []) as string[]}
          permissions={field.permissions ?? []}
          onChange={onChange}
        />
      );
    case 'lines':
      return <Textarea {...text} autosize minRows={2} onChange={(event) => onChange(event.currentTarget.value)} />;
    case 'secret':
      return (
        <TextInput
          {...text}
          type="password"
          autoComplete="new-password"
          onChange={(event) => onChange(event.currentTarget.value)}
        />
      );
    default:
      return <TextInput {...text} onChange={(event) => onChange(event.currentTarget.value)} />;
  }
}

interface FormProps {
  kind: Kind;
  id: string | null;
  /** With a field `name` for a new object. */
  fields: readonly Field[];
  /** What every creation says. */
  always?: Props;
  onClose: () => void;
}

function EditForm({ kind, id, fields, always = {}, onClose }: FormProps) {
  const { t } = useTranslation('editing');
  const { t: common } = useTranslation('components');
  const save = useSave(kind);
  const [values, setValues] = useState<Record<string, Value>>({});
  const [shown, setShown] = useState<ReturnType<typeof propsOf>['errors']>({});
  const problem = save.isError ? asProblem(save.error) : null;
  const { errors, isPlaced } = placesOf(
    problem,
    fields.map(({ name }) => name),
  );
  const end = (refused: readonly unknown[]) => {
    if (refused.length === 0) onClose();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const { props, errors: malformed } = propsOf(fields, values);
    setShown(malformed);
    if (Object.keys(malformed).length > 0) return;
    if (id !== null) {
      if (Object.keys(props).length === 0) onClose();
      else save.mutate({ id, name: id, props }, { onSuccess: end });
      return;
    }
    const { name, ...others } = props;
    save.mutate({ id, name: String(name), props: { ...always, ...others } }, { onSuccess: end });
  };
  if (save.isSuccess && save.data.length > 0) {
    return (
      <Stack gap="sm">
        <Notice tone="wait" role="status" title={t('groupsRefused')} />
        {save.data.map(({ resourceGroup, problem: refusal }) => (
          <Stack key={resourceGroup} gap={4}>
            <Text size="sm">{resourceGroup}</Text>
            <ProblemAlert error={refusal} />
          </Stack>
        ))}
        <Group justify="flex-end">
          <Button onClick={onClose}>{common('close')}</Button>
        </Group>
      </Stack>
    );
  }
  return (
    <form onSubmit={submit} noValidate>
      <Stack gap="sm">
        {fields.map((field) => {
          const malformed = shown[field.name];
          return (
            <Control
              key={field.name}
              field={field}
              value={values[field.name] ?? field.value}
              error={malformed === undefined ? errors[field.name] : t(`malformed.${malformed}`)}
              onChange={(value) => {
                setValues((before) => ({ ...before, [field.name]: value }));
                setShown(({ [field.name]: _, ...rest }) => rest);
                save.reset(); // what was wrong with it is told until something changes
              }}
            />
          );
        })}
        {problem !== null && !isPlaced && <ProblemAlert error={problem} />}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            {common('cancel')}
          </Button>
          <Button type="submit" loading={save.isPending}>
            {t(id === null ? 'create' : 'save')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

/**
 * A dialog that creates an object, or changes the one with `id`. What is not taken is told at its field.
 *
 * While `fields` are undefined it shows the state of the first query that they wait for.
 */
export function EditDialog({
  title,
  fields,
  waitsFor = [],
  ...rest
}: Omit<FormProps, 'fields'> & {
  title: string;
  fields: readonly Field[] | undefined;
  waitsFor?: readonly UseQueryResult<unknown>[];
}) {
  const { t } = useTranslation('components');
  const pending = waitsFor.find(({ data }) => data === undefined);
  return (
    <Modal opened onClose={rest.onClose} title={title} size="lg" closeButtonProps={{ 'aria-label': t('close') }}>
      {fields !== undefined && <EditForm fields={fields} {...rest} />}
      {fields === undefined && pending !== undefined && <Query query={pending}>{() => null}</Query>}
    </Modal>
  );
}
