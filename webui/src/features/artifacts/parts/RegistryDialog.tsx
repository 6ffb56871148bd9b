import { NativeSelect, TagsInput, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { bytesOf } from '../../../api/amounts';
import { asProblem } from '../../../api/problems';
import { FormDialog } from '../../../components/FormDialog';
import { type Registry, useArtifactStorages, useChangeRegistry } from '../queries';

const stages = ['download', 'verify', 'archive'] as const;

/** Changes a registry; credentials that are left empty stay as they are. */
export default function RegistryDialog({ registry, onClose }: { registry: Registry; onClose: () => void }) {
  const { t } = useTranslation('artifacts');
  const save = useChangeRegistry();
  const [url, setUrl] = useState(registry.url);
  const [accessKey, setAccessKey] = useState('');
  const [secret, setSecret] = useState('');
  const [viewers, setViewers] = useState(registry.viewers);
  const [limit, setLimit] = useState(registry.user_import_bytes === null ? '' : String(registry.user_import_bytes));
  const offered = useArtifactStorages().data ?? [];
  const [storages, setStorages] = useState(registry.storages);
  const isReservoir = registry.type === 'reservoir';
  const bytes = limit.trim() === '' ? null : bytesOf(limit);
  const isMalformed = limit.trim() !== '' && bytes === null;
  const isHalf = isReservoir && (accessKey === '') !== (secret === '');
  const fields = save.isError ? asProblem(save.error).fields : {};
  const submit = () => {
    if (isMalformed || isHalf) return;
    const credentials: Record<string, string> = isReservoir
      ? { access_key: accessKey, secret_key: secret }
      : { token: secret };
    const change = {
      ...(url.trim() !== registry.url && { url: url.trim() }),
      ...(secret !== '' && { credentials }),
      ...(viewers.join('\n') !== registry.viewers.join('\n') && { viewers }),
      ...(stages.some((stage) => storages[stage] !== registry.storages[stage]) && { storages }),
      ...(bytes !== null && bytes !== registry.user_import_bytes && { user_import_bytes: bytes }),
    };
    save.mutate({ name: registry.name, change }, { onSuccess: onClose });
  };
  return (
    <FormDialog
      title={t('registries.changeOf', { name: registry.name })}
      action={t('registries.save')}
      isBusy={save.isPending}
      error={save.error}
      onSubmit={submit}
      onClose={onClose}
    >
      {registry.type !== 'local' && (
        <TextInput
          label={t('registries.url')}
          type="url"
          value={url}
          error={fields.url}
          onChange={(event) => setUrl(event.currentTarget.value)}
        />
      )}
      {isReservoir && (
        <TextInput
          label={t('registries.accessKey')}
          description={t('registries.kept')}
          autoComplete="off"
          value={accessKey}
          error={isHalf ? t('registries.both') : undefined}
          onChange={(event) => setAccessKey(event.currentTarget.value)}
        />
      )}
      {registry.type !== 'local' && (
        <TextInput
          label={t(isReservoir ? 'registries.secretKey' : 'registries.token')}
          description={t('registries.kept')}
          type="password"
          autoComplete="new-password"
          value={secret}
          error={fields.credentials}
          onChange={(event) => setSecret(event.currentTarget.value)}
        />
      )}
      <TagsInput
        label={t('registries.viewers')}
        description={t('registries.viewersHint')}
        value={viewers}
        error={fields.viewers}
        onChange={setViewers}
      />
      {stages.map((stage) => {
        const current = storages[stage] ?? '';
        const hosts = new Set([...offered.map(({ host }) => host), ...(current === '' ? [] : [current])]);
        return (
          <NativeSelect
            key={stage}
            label={t(`registries.stage.${stage}`)}
            data={[{ value: '', label: t('registries.usualStorage') }, ...hosts]}
            value={current}
            error={fields.storages}
            onChange={(event) => {
              const host = event.currentTarget.value;
              const others = Object.entries(storages).filter(([name]) => name !== stage);
              setStorages(Object.fromEntries(host === '' ? others : [...others, [stage, host]]));
            }}
          />
        );
      })}
      <TextInput
        label={t('registries.limit')}
        description={t('registries.limitHint')}
        placeholder="20g"
        value={limit}
        error={isMalformed ? t('registries.noAmount') : fields.user_import_bytes}
        onChange={(event) => setLimit(event.currentTarget.value)}
      />
    </FormDialog>
  );
}
