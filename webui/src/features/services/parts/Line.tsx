import { Code, Group } from '@mantine/core';
import { Copy } from '../../../components/Copy';
import classes from './Line.module.css';

/** A line for a shell, with a button that copies it; `label` says which. */
export function Line({ text, label }: { text: string; label: string }) {
  return (
    <Group gap={4} wrap="nowrap" align="flex-start">
      <Code block className={classes.line ?? ''}>
        {text}
      </Code>
      <Copy value={text} label={label} />
    </Group>
  );
}
