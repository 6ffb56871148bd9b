import {
  IconAlertTriangle,
  IconCircleCheck,
  IconCircleDashed,
  IconCircleX,
  IconClock,
  IconLoader2,
} from '@tabler/icons-react';
import classes from './StatusBadge.module.css';

export type Tone = 'good' | 'busy' | 'wait' | 'bad' | 'idle' | 'warn';

const icons = {
  good: IconCircleCheck,
  busy: IconLoader2,
  wait: IconClock,
  warn: IconAlertTriangle,
  bad: IconCircleX,
  idle: IconCircleDashed,
};

/** Shows a status by icon, word and colour. */
export function StatusBadge({ tone, label }: { tone: Tone; label: string }) {
  const Icon = icons[tone];
  return (
    <span className={classes.badge} data-tone={tone === 'warn' ? 'wait' : tone}>
      <Icon size={14} aria-hidden />
      {label}
    </span>
  );
}
