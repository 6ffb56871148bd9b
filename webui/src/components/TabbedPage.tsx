import { Breadcrumbs, Tabs } from '@mantine/core';
import { type ReactNode, Suspense } from 'react';
import { Waiting } from './Query';
import classes from './TabbedPage.module.css';

/** The path to a page of one object: its list, and where the person is. */
export function Crumbs({ list, here }: { list: ReactNode; here: string }) {
  return (
    <Breadcrumbs mb="xs" className={classes.crumbs ?? ''}>
      {list}
      <span className={classes.here}>{here}</span>
    </Breadcrumbs>
  );
}

/** Tabs of one object, of which one is open. Whoever uses it keeps the name of the open one in the address. */
export function PageTabs<Name extends string>({
  label,
  names,
  labelOf,
  open,
  onOpen,
  children,
}: {
  label: string;
  names: readonly Name[];
  labelOf: (name: Name) => string;
  open: Name;
  onOpen: (name: string) => void;
  children: ReactNode;
}) {
  return (
    <Tabs value={open} onChange={(name) => onOpen(name ?? names[0] ?? '')} keepMounted={false}>
      <Tabs.List className={classes.tabs ?? ''} aria-label={label}>
        {names.map((name) => (
          <Tabs.Tab key={name} value={name}>
            {labelOf(name)}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      <Tabs.Panel value={open} pt="md">
        <Suspense fallback={<Waiting />}>{children}</Suspense>
      </Tabs.Panel>
    </Tabs>
  );
}
