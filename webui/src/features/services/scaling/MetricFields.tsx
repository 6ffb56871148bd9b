import { NativeSelect, TextInput } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { proxyMetrics, type Source, sources } from './drafts';

interface Errors {
  source?: string | undefined;
  metric?: string | undefined;
}

/** Chooses a metric by its source: those of the app proxy are known, others are typed. */
export function MetricFields({
  source,
  metric,
  errors,
  onChange,
}: {
  source: string;
  metric: string;
  errors: Errors;
  onChange: (part: { source?: string; metric?: string }) => void;
}) {
  const { t } = useTranslation('scaling');
  return (
    <>
      <NativeSelect
        label={t('source')}
        data={sources.map((value) => ({ value, label: t(`sources.${value}`) }))}
        value={source}
        error={errors.source}
        onChange={({ currentTarget: { value } }) =>
          onChange({ source: value, metric: (value as Source) === 'proxy' ? 'load' : '' })
        }
      />
      {source === 'proxy' ? (
        <NativeSelect
          label={t('metric')}
          data={[...new Set([...proxyMetrics, metric])].map((value) => ({
            value,
            label: t(`metrics.${value as 'load'}`, { defaultValue: value }),
          }))}
          value={metric}
          error={errors.metric}
          onChange={(event) => onChange({ metric: event.currentTarget.value })}
        />
      ) : (
        <TextInput
          label={t('metric')}
          description={t(`metricHint.${source as 'kernel'}`)}
          value={metric}
          autoComplete="off"
          maxLength={128}
          error={errors.metric}
          onChange={(event) => onChange({ metric: event.currentTarget.value })}
        />
      )}
    </>
  );
}
