import { IconBan, IconHandStop, IconHourglass } from '@tabler/icons-react';
import { useTranslation } from 'react-i18next';
import type { Wait } from '../rules';
import classes from './WaitReason.module.css';

const icons = { time: IconHourglass, act: IconHandStop, never: IconBan };

/** Says why a session waits, and whether time, somebody, or nothing helps. */
export function WaitReason({ wait, isLong = false }: { wait: Wait; isLong?: boolean }) {
  const { t, i18n } = useTranslation('sessions');
  const Icon = icons[wait.class];
  const key = `reason.${wait.reason}`;
  const name = i18n.exists(key, { ns: 'sessions' }) ? t(key as 'reason.not-yet') : wait.reason;
  return (
    <span className={classes.reason} data-class={wait.class} title={isLong ? undefined : wait.message}>
      <Icon size={14} aria-hidden />
      <span>
        <b>{name}</b>
        {isLong && (
          <>
            {' · '}
            {t(`wait.${wait.class}`)}
            {wait.message !== '' && (
              <span className={classes.message} lang="en">
                {wait.message}
              </span>
            )}
          </>
        )}
      </span>
    </span>
  );
}
