import { useEffect, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { formatMoment, formatRelative } from '../i18n/format';

/** Shows how long ago a moment was, renewed each half minute; the title has the moment in full. */
export function RelativeTime({ at }: { at: string | null | undefined }) {
  const { i18n } = useTranslation();
  const [now, setNow] = useState(() => new Date());
  useEffect(() => {
    const timer = setInterval(() => setNow(new Date()), 30_000);
    return () => clearInterval(timer);
  }, []);
  if (!at) return <span>–</span>;
  const moment = new Date(at);
  if (Number.isNaN(moment.getTime())) return <span>–</span>;
  return (
    <time dateTime={at} title={formatMoment(moment, i18n.language)} style={{ whiteSpace: 'nowrap' }}>
      {formatRelative(moment, now, i18n.language)}
    </time>
  );
}
