import { ActionIcon, Button, Group, Menu } from '@mantine/core';
import { IconDots } from '@tabler/icons-react';
import { type ReactNode, useState } from 'react';

/** One act of a row: its name, and the dialog that asks before it. */
export interface RowAction {
  label: string;
  dialog: (onClose: () => void) => ReactNode;
}

/** The acts of a row: the first one as a button, the others in a menu. Each opens its dialog. */
export function RowActions({
  first,
  firstLabel,
  others,
  moreLabel,
}: {
  first: RowAction;
  /** The names of the button and of the menu for those who do not see their row. */
  firstLabel: string;
  others: readonly RowAction[];
  moreLabel: string;
}) {
  const [asked, setAsked] = useState<RowAction | null>(null);
  return (
    <Group gap={4} wrap="nowrap">
      <Button size="compact-xs" variant="default" onClick={() => setAsked(first)} aria-label={firstLabel}>
        {first.label}
      </Button>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon variant="subtle" color="gray" aria-label={moreLabel}>
            <IconDots size={16} aria-hidden />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          {others.map((action) => (
            <Menu.Item key={action.label} onClick={() => setAsked(action)}>
              {action.label}
            </Menu.Item>
          ))}
        </Menu.Dropdown>
      </Menu>
      {asked?.dialog(() => setAsked(null))}
    </Group>
  );
}
