import { Alert } from '@mantine/core';
import { IconAlertTriangle, IconCircleCheck, IconInfoCircle } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import classes from './Notice.module.css';

const icons = { info: IconInfoCircle, good: IconCircleCheck, wait: IconAlertTriangle, bad: IconAlertTriangle };

/** A framed message; `role` says whether screen readers interrupt for it. */
export function Notice({
  tone,
  title,
  icon,
  role,
  children,
}: {
  tone: keyof typeof icons;
  title: ReactNode;
  icon?: ReactNode;
  role?: 'alert' | 'status';
  children?: ReactNode;
}) {
  const Icon = icons[tone];
  return (
    <Alert
      variant="outline"
      icon={icon ?? <Icon aria-hidden />}
      title={title}
      role={role ?? 'note'}
      data-tone={tone}
      classNames={{ root: classes.root ?? '', title: classes.title ?? '', icon: classes.icon ?? '' }}
    >
      {children}
    </Alert>
  );
}
