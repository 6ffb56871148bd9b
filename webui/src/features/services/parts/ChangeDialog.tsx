import { Checkbox, Group, Select, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { errorsByField } from '../../../api/forms/fields';
import { FormDialog } from '../../../components/FormDialog';
import { Query } from '../../../components/Query';
import { type ChangeField, changeDraftOf, changeFields, changeOf, makesRevision } from '../changes';
import { type ServiceDetails, useModelFolders, useModify, useRuntimeVariants, useServedImages } from '../queries';
import { imageName } from '../rules';
import { SlotFields } from './SlotFields';

interface Props {
  service: ServiceDetails;
  onClose: () => void;
}

const withChosen = (names: readonly string[], chosen: string) => [
  ...new Set([...names, ...(chosen === '' ? [] : [chosen])]),
];

function ChangeForm({ service, folders, onClose }: Props & { folders: Readonly<Record<string, string>> }) {
  const { t } = useTranslation('services');
  const images = useServedImages();
  const variants = useRuntimeVariants();
  const save = useModify(service.endpoint_id);
  const [before] = useState(() => changeDraftOf(service, folders));
  const [draft, setDraft] = useState(before);
  const [wrong, setWrong] = useState<readonly ChangeField[]>([]);
  const { errors, isPlaced } = errorsByField(save.error, changeFields);
  const errorOf = (name: ChangeField) => (wrong.includes(name) ? t('change.malformed') : errors[name]);
  const change = (part: Partial<typeof draft>) => {
    setDraft((known) => ({ ...known, ...part }));
    setWrong([]);
    save.reset();
  };
  const { body } = changeOf(draft, before);
  const submit = () => {
    const read = changeOf(draft, before);
    setWrong(read.wrong);
    if (read.wrong.length > 0) return;
    if (Object.keys(read.body).length === 0) onClose();
    else save.mutate(read.body, { onSuccess: onClose });
  };
  const text = (name: 'name' | 'version' | 'definition' | 'modelName' | 'command' | 'port' | 'tag') => ({
    value: draft[name],
    autoComplete: 'off',
    error: errorOf(name),
    onChange: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value }),
  });
  return (
    <FormDialog
      title={t('change.title', { name: service.name })}
      action={t('change.action')}
      isBusy={save.isPending}
      error={isPlaced ? null : save.error}
      onSubmit={submit}
      onClose={onClose}
    >
      <TextInput {...text('name')} label={t('create.name')} description={t('create.nameHint')} maxLength={48} />
      <Checkbox
        label={t('create.public')}
        description={t('create.publicHint')}
        checked={draft.isPublic}
        error={errorOf('isPublic')}
        onChange={(event) => change({ isPublic: event.currentTarget.checked })}
      />
      <Select
        label={t('fact.image')}
        searchable
        data={withChosen((images.data ?? []).map(imageName), draft.image)}
        value={draft.image}
        allowDeselect={false}
        nothingFoundMessage={t('create.noImage')}
        error={errorOf('image')}
        onChange={(image) => change({ image: image ?? draft.image })}
      />
      <Select
        label={t('create.model')}
        searchable
        data={withChosen(Object.values(folders), draft.model)}
        value={draft.model}
        allowDeselect={false}
        nothingFoundMessage={t('create.noFolder')}
        error={errorOf('model')}
        onChange={(model) => change({ model: model ?? draft.model })}
      />
      <Group grow align="flex-start">
        <TextInput {...text('version')} label={t('change.version')} />
        <TextInput {...text('definition')} label={t('fact.definition')} />
      </Group>
      <Select
        label={t('fact.variant')}
        data={withChosen(
          (variants.data ?? []).map(({ name }) => name),
          draft.variant,
        ).map((value) => ({
          value,
          label: variants.data?.find(({ name }) => name === value)?.title ?? value,
        }))}
        value={draft.variant}
        allowDeselect={false}
        error={errorOf('variant')}
        onChange={(variant) => change({ variant: variant ?? draft.variant })}
      />
      <TextInput {...text('command')} label={t('create.command')} description={t('change.emptyHint')} />
      <Group grow align="flex-start">
        <TextInput {...text('modelName')} label={t('change.modelName')} description={t('change.modelNameHint')} />
        <TextInput {...text('port')} label={t('change.port')} inputMode="numeric" />
        <TextInput {...text('tag')} label={t('change.tag')} maxLength={64} />
      </Group>
      <Textarea
        label={t('change.environ')}
        description={[
          t('change.environHint'),
          ...(service.secret_names.length > 0 ? [t('change.secrets', { names: service.secret_names.join(', ') })] : []),
        ].join(' ')}
        autosize
        minRows={2}
        maxRows={10}
        spellCheck={false}
        value={draft.environ}
        error={errorOf('environ')}
        onChange={(event) => change({ environ: event.currentTarget.value })}
      />
      <Stack gap={4}>
        <Text size="sm">{t('change.resources')}</Text>
        <SlotFields
          group={service.resource_group}
          amounts={draft.amounts}
          onChange={(amounts) => change({ amounts })}
        />
        {errorOf('amounts') && (
          <Text size="sm" c="var(--app-bad)" role="alert">
            {errorOf('amounts')}
          </Text>
        )}
      </Stack>
      {makesRevision(body) && <Text size="sm">{t('change.revision')}</Text>}
    </FormDialog>
  );
}

/** Changes what a service is made of, which is rolled out as a new revision, or its name and who may call it. */
export function ChangeDialog(props: Props) {
  const folders = useModelFolders();
  return (
    <Query query={folders} rows={1}>
      {(list) => <ChangeForm {...props} folders={Object.fromEntries(list.map(({ id, name }) => [id, name]))} />}
    </Query>
  );
}
export default ChangeDialog;
