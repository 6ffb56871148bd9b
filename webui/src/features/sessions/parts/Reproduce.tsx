import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Commands } from '../../../components/Commands';
import type { SessionDetails } from '../queries';
import { requestOf } from '../rules';

/** The command and the program that start a session like this one. */
export function Reproduce({ session }: { session: SessionDetails }) {
  const { t } = useTranslation('sessionWork');
  return (
    <Card title={t('reproduce')}>
      <Commands request={requestOf(session)} />
    </Card>
  );
}
export default Reproduce;
