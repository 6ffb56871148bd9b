import { Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Query } from '../../../components/Query';
import { useFolderTypes } from '../folder-types';

/** The kinds of owners that folders may have. */
export function FolderTypesCard() {
  const { t } = useTranslation('operations');
  return (
    <Card title={t('storage.types')}>
      <Query query={useFolderTypes()} rows={1}>
        {(types) => (
          <Text size="sm">
            {types.map((type) => t(`storage.type.${type}` as 'storage.type.user', type)).join(', ') ||
              t('storage.noTypes')}
          </Text>
        )}
      </Query>
    </Card>
  );
}
