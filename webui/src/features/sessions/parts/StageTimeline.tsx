import { useEffect, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { RelativeTime } from '../../../components/RelativeTime';
import { formatDuration } from '../../../i18n/format';
import { stagesOf, toneOf } from '../rules';
import classes from './StageTimeline.module.css';

/** The stages of a session with how long each lasted. */
export function StageTimeline({ history, isLive }: { history: string | null | undefined; isLive: boolean }) {
  const { t, i18n } = useTranslation('sessions');
  const [now, setNow] = useState(() => new Date());
  useEffect(() => {
    if (!isLive) return;
    const timer = setInterval(() => setNow(new Date()), 5_000);
    return () => clearInterval(timer);
  }, [isLive]);
  const stages = stagesOf(history, isLive, now);
  return (
    <ol className={classes.list}>
      {stages.map((stage, index) => (
        <li
          key={stage.status}
          className={classes.stage}
          data-tone={toneOf(stage.status)}
          data-last={index === stages.length - 1}
        >
          <b>{stage.status}</b>
          <span className={classes.detail}>
            <RelativeTime at={stage.at} />
            {stage.seconds !== null && (
              <> · {t('lasted', { duration: formatDuration(stage.seconds, i18n.language) })}</>
            )}
          </span>
        </li>
      ))}
    </ol>
  );
}
