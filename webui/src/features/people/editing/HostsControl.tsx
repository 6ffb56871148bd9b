import { MultiSelect, Stack, TagsInput } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import type { HostPermissions } from './fields';

/** Storage hosts, and for each what may be done on it; a new one begins with every permission. */
export function HostsControl({
  label,
  description,
  error,
  value,
  hosts,
  permissions,
  onChange,
}: {
  label: string;
  description: string | undefined;
  error: string | undefined;
  value: HostPermissions;
  hosts: readonly string[];
  permissions: readonly string[];
  onChange: (value: HostPermissions) => void;
}) {
  const { t } = useTranslation('editing');
  return (
    <Stack gap="xs">
      <TagsInput
        label={label}
        description={description}
        error={error}
        data={[...hosts]}
        value={Object.keys(value)}
        onChange={(names) => onChange(Object.fromEntries(names.map((host) => [host, value[host] ?? permissions])))}
        acceptValueOnBlur
      />
      {Object.entries(value).map(([host, permitted]) => (
        <MultiSelect
          key={host}
          label={t('onHost', { host })}
          data={[...new Set([...permissions, ...permitted])]}
          value={[...permitted]}
          onChange={(names) => onChange({ ...value, [host]: names })}
          searchable
        />
      ))}
    </Stack>
  );
}
