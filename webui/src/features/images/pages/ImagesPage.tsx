import { Group, Text } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { Copy } from '../../../components/Copy';
import { EmptyState } from '../../../components/EmptyState';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { SearchField } from '../../../components/SearchField';
import { SimpleTable } from '../../../components/SimpleTable';
import { Slots } from '../../../components/Slots';
import { StatusBadge } from '../../../components/StatusBadge';
import { formatBytes } from '../../../i18n/format';
import { useImages } from '../queries';
import { matches, referenceOf } from '../rules';

/** The images that sessions may have, and what each needs. */
export function ImagesPage() {
  const { t, i18n } = useTranslation('images');
  const { q = '' } = useSearch({ from: '/shell/images' });
  const navigate = useNavigate();
  const query = useImages();
  return (
    <Page title={t('title')}>
      <SearchField
        label={t('filter')}
        clearLabel={t('clear')}
        value={q}
        onChange={(text) => void navigate({ to: '/images', search: text === '' ? {} : { q: text }, replace: true })}
      />
      <Query query={query}>
        {(images) => {
          const shown = images.filter((image) => matches(image, q));
          if (images.length === 0) return <EmptyState title={t('none')}>{t('noneHint')}</EmptyState>;
          if (shown.length === 0) return <EmptyState title={t('nothingMatches')} />;
          return (
            <SimpleTable
              label={t('title')}
              rows={shown}
              idOf={(image) => `${referenceOf(image)} ${image.architecture}`}
              minWidth={820}
              columns={[
                {
                  label: t('column.name'),
                  cell: (image) => (
                    <Group gap={4} wrap="nowrap">
                      <span>{referenceOf(image)}</span>
                      <Copy value={referenceOf(image)} label={t('copy', { name: referenceOf(image) })} />
                    </Group>
                  ),
                },
                {
                  label: t('column.aliases'),
                  cell: (image) => (
                    <Text size="sm" c="dimmed">
                      {(image.aliases ?? []).slice(0, 4).join(', ')}
                    </Text>
                  ),
                },
                { label: t('column.architecture'), cell: (image) => image.architecture },
                {
                  label: t('column.size'),
                  cell: (image) => (image.size_bytes ? formatBytes(image.size_bytes, i18n.language) : '–'),
                },
                {
                  label: t('column.minimum'),
                  cell: (image) => (
                    <Slots
                      amounts={Object.fromEntries(
                        (image.resource_limits ?? [])
                          .map((limit) => [limit?.key ?? '', limit?.min ?? '0'])
                          .filter(([, min]) => min !== '0'),
                      )}
                    />
                  ),
                },
                {
                  label: t('column.state'),
                  cell: (image) => (
                    <StatusBadge
                      tone={image.installed ? 'good' : 'idle'}
                      label={image.installed ? t('installed') : t('notInstalled')}
                    />
                  ),
                },
              ]}
            />
          );
        }}
      </Query>
    </Page>
  );
}
export default ImagesPage;
