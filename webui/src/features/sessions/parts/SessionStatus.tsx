import { useTranslation } from 'react-i18next';
import { StatusBadge } from '../../../components/StatusBadge';
import { toneOf } from '../rules';

/** Shows the status of a session by the word of the manager and the command line. */
export function SessionStatus({ status }: { status: string | null | undefined }) {
  const { t } = useTranslation('sessions');
  return <StatusBadge tone={toneOf(status)} label={status ?? t('unknown')} />;
}
