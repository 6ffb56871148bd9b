import { Checkbox, Group, TextInput } from '@mantine/core';
import { homeOf } from '../api/mounts';

/** Mounts of a form; `paths` says where they are seen, if that is elsewhere than at their usual places. */
export interface Mounts {
  mounts: string[];
  paths: Record<string, string>;
  readOnly: string[];
}

/** Where each mount is seen, and which cannot be written to. */
export function MountFields({
  draft,
  change,
  pathLabel,
  readOnlyLabel,
}: {
  draft: Mounts;
  change: (changes: Partial<Mounts>) => void;
  pathLabel: (mount: string) => string;
  readOnlyLabel: (mount: string) => string;
}) {
  return draft.mounts.map((mount) => (
    <Group key={mount} gap="sm" align="flex-end" mt="xs">
      <TextInput
        label={pathLabel(mount)}
        placeholder={homeOf(mount)}
        value={draft.paths[mount] ?? ''}
        autoComplete="off"
        spellCheck={false}
        onChange={(event) => change({ paths: { ...draft.paths, [mount]: event.currentTarget.value } })}
        style={{ flex: '1 1 200px' }}
      />
      <Checkbox
        label={readOnlyLabel(mount)}
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
