import { Button, FileButton, Group, NativeSelect, Progress, Stack, Text, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { formatBytes } from '../../../i18n/format';
import { useArtifactRegistries, useUpload } from '../queries';
import { filesOf, type UploadedFile } from '../uploads';

const types = ['MODEL', 'PACKAGE', 'IMAGE'] as const;
type ArtifactType = (typeof types)[number];

function UploadForm({ registries }: { registries: readonly string[] }) {
  const { t, i18n } = useTranslation('artifacts');
  const upload = useUpload();
  const [registry, setRegistry] = useState(registries[0] ?? '');
  const [type, setType] = useState<ArtifactType>('MODEL');
  const [name, setName] = useState('');
  const [version, setVersion] = useState('');
  const [description, setDescription] = useState('');
  const [files, setFiles] = useState<UploadedFile[]>([]);
  const [sent, setSent] = useState(0);
  const size = files.reduce((sum, { file }) => sum + file.size, 0);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (files.length === 0) return;
    setSent(0);
    upload.mutate({
      registry,
      artifact_type: type,
      name: name.trim(),
      version: version.trim(),
      description: description.trim(),
      files,
      onSent: setSent,
    });
  };
  const choose = (chosen: File[]) => {
    upload.reset();
    setFiles(filesOf(chosen));
  };
  const errors = upload.isError ? asProblem(upload.error).fields : {};
  return (
    <form onSubmit={submit}>
      <Stack gap="sm" maw={560}>
        <Text size="sm" c="dimmed">
          {t('upload.means')}
        </Text>
        <NativeSelect
          label={t('upload.registry')}
          data={[...registries]}
          value={registry}
          error={errors.registry}
          onChange={(event) => setRegistry(event.currentTarget.value)}
        />
        <NativeSelect
          label={t('upload.type')}
          data={types.map((value) => ({ value, label: t(`type.${value}`) }))}
          value={type}
          onChange={(event) => setType(event.currentTarget.value as ArtifactType)}
        />
        <TextInput
          label={t('upload.name')}
          placeholder="acme/tiny"
          required
          withAsterisk={false}
          value={name}
          error={errors.name}
          onChange={(event) => setName(event.currentTarget.value)}
        />
        <TextInput
          label={t('upload.version')}
          placeholder="v1"
          required
          withAsterisk={false}
          value={version}
          error={errors.version}
          onChange={(event) => setVersion(event.currentTarget.value)}
        />
        <TextInput
          label={t('upload.description')}
          value={description}
          error={errors.description}
          onChange={(event) => setDescription(event.currentTarget.value)}
        />
        <Group gap="xs">
          <FileButton multiple onChange={choose} inputProps={{ 'aria-label': t('upload.files') }}>
            {(props) => (
              <Button {...props} variant="default" disabled={upload.isPending}>
                {t('upload.files')}
              </Button>
            )}
          </FileButton>
          <FileButton
            multiple
            onChange={choose}
            inputProps={{ 'aria-label': t('upload.directory'), ...{ webkitdirectory: '' } }}
          >
            {(props) => (
              <Button {...props} variant="default" disabled={upload.isPending}>
                {t('upload.directory')}
              </Button>
            )}
          </FileButton>
        </Group>
        <Text size="sm" role="status">
          {t('upload.chosen', { count: files.length, size: formatBytes(size, i18n.language) })}
        </Text>
        {upload.isPending && (
          <Progress value={size === 0 ? 0 : (100 * sent) / size} aria-label={t('upload.progress')} />
        )}
        {upload.isError && <ProblemAlert error={upload.error} />}
        {upload.isSuccess && (
          <Notice tone="good" role="status" title={t('upload.done')}>
            <AnchorLink to="/artifacts/$id" params={{ id: upload.data }}>
              {t('upload.see')}
            </AnchorLink>
          </Notice>
        )}
        <Group>
          <Button type="submit" variant="default" loading={upload.isPending} disabled={files.length === 0}>
            {t('upload.action')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

/** Makes a version of an artifact of files of the person's computer, in a registry for uploads. */
export function UploadCard() {
  const { t } = useTranslation('artifacts');
  return (
    <Card title={t('upload.title')}>
      <Query query={useArtifactRegistries()}>
        {(registries) => {
          const local = registries.filter(({ type }) => type === 'local').map(({ name }) => name);
          return local.length === 0 ? <Text>{t('upload.none')}</Text> : <UploadForm registries={local} />;
        }}
      </Query>
    </Card>
  );
}
