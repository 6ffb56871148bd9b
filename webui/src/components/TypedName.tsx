import { TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';

/**
 * Asks for a name before what cannot be undone. Returns the field and whether the name has been typed, which it has
 * where none is asked for.
 */
export function useTypedName(name: string | undefined) {
  const { t } = useTranslation('components');
  const [typed, setTyped] = useState('');
  return {
    isTyped: name === undefined || typed === name,
    field: name !== undefined && (
      <TextInput
        label={t('confirm.typeName', { name })}
        value={typed}
        onChange={(event) => setTyped(event.currentTarget.value)}
        autoComplete="off"
      />
    ),
  };
}
