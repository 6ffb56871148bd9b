import { Group, TextInput } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { useGroupSlots } from '../../../api/choices';
import { slotLabel } from '../../../api/slots';
import { Query } from '../../../components/Query';

/** A field for the amount of each slot that the resource group has. */
export function SlotFields({
  group,
  amounts,
  onChange,
}: {
  group: string;
  amounts: Record<string, string>;
  onChange: (amounts: Record<string, string>) => void;
}) {
  const { t } = useTranslation('services');
  const query = useGroupSlots(group);
  return (
    <Query query={query} rows={2}>
      {(details) => {
        // An amount of a slot that this group lacks stays, so that it is seen and can be taken away.
        const names = [...new Set([...Object.keys(details), ...Object.keys(amounts)])];
        return (
          <Group align="flex-start">
            {names.map((name) => {
              const slot = details[name];
              return (
                <TextInput
                  key={name}
                  label={slotLabel(name, details)}
                  description={slot === undefined ? t('create.noSlot') : slot.description || name}
                  placeholder={slot?.slot_type === 'bytes' ? '4g' : '1'}
                  value={amounts[name] ?? ''}
                  autoComplete="off"
                  maxLength={32}
                  w={170}
                  onChange={(event) => {
                    const amount = event.currentTarget.value.replaceAll(/[,=]/g, '');
                    const { [name]: _, ...others } = amounts;
                    onChange(amount === '' ? others : { ...others, [name]: amount });
                  }}
                />
              );
            })}
          </Group>
        );
      }}
    </Query>
  );
}
