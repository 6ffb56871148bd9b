import { NativeSelect, TextInput } from '@mantine/core';
import { useTranslation } from 'react-i18next';

/** Chooses among the models that the service names; where it names none, the name is typed. */
export function ModelField({
  models,
  value,
  onChange,
}: {
  models: readonly string[];
  value: string;
  onChange: (model: string) => void;
}) {
  const { t } = useTranslation('playground');
  const common = { label: t('model'), value, w: { base: '100%', sm: 280 } };
  return models.length > 0 ? (
    <NativeSelect {...common} data={[...models]} onChange={(event) => onChange(event.currentTarget.value)} />
  ) : (
    <TextInput
      {...common}
      description={t('modelHint')}
      autoComplete="off"
      maxLength={512}
      onChange={(event) => onChange(event.currentTarget.value)}
    />
  );
}
