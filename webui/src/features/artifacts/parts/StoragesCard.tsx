import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { useArtifactStorages } from '../queries';

const capabilities = ['mount', 'presign'] as const;
const stages = ['download', 'verify', 'archive'] as const;

/** The storages that artifacts can lie in. */
export function StoragesCard() {
  const { t } = useTranslation('artifacts');
  const capability = (word: string) => {
    const known = capabilities.find((each) => each === word);
    return known ? t(`storages.capability.${known}`) : word;
  };
  const stage = (word: string) => {
    const known = stages.find((each) => each === word);
    return known ? t(`storages.stage.${known}`) : word;
  };
  return (
    <Card title={t('storages.title')}>
      <Query query={useArtifactStorages()}>
        {(storages) => (
          <SimpleTable
            label={t('storages.title')}
            rows={storages}
            idOf={(row) => row.host}
            columns={[
              { label: t('storages.host'), cell: (row) => row.host },
              { label: t('storages.backend'), cell: (row) => row.backend },
              { label: t('storages.capabilities'), cell: (row) => (row.capabilities ?? []).map(capability).join(', ') },
              { label: t('storages.stages'), cell: (row) => (row.stages ?? []).map(stage).join(', ') || '–' },
            ]}
          />
        )}
      </Query>
    </Card>
  );
}
