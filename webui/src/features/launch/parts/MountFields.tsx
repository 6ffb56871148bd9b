import { Checkbox, Group, TextInput } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import type { Draft } from '../draft';
import { homeOf } from '../rules';

/** Where each mount of a draft is seen, and which cannot be written to. */
export function MountFields({ draft, change }: { draft: Draft; change: (changes: Partial<Draft>) => void }) {
  const { t } = useTranslation('launch');
  return draft.mounts.map((mount) => (
    <Group key={mount} gap="sm" align="flex-end" mt="xs">
      <TextInput
        label={t('data.path', { name: mount })}
        placeholder={homeOf(mount)}
        value={draft.paths[mount] ?? ''}
        autoComplete="off"
        spellCheck={false}
        onChange={(event) => change({ paths: { ...draft.paths, [mount]: event.currentTarget.value } })}
        style={{ flex: '1 1 200px' }}
      />
      <Checkbox
        label={t('data.readOnly', { name: mount })}
        checked={draft.readOnly.includes(mount)}
        onChange={(event) =>
          change({
            readOnly: event.currentTarget.checked
              ? [...draft.readOnly, mount]
              : draft.readOnly.filter((each) => each !== mount),
          })
        }
        mb={8}
      />
    </Group>
  ));
}
