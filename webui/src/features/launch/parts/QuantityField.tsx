import { Group, Slider, Text, TextInput } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { formatSlot, type SlotDetails, slotLabel } from '../../../api/slots';
import { amountOf, exceeded, type Limits } from '../rules';
import classes from './QuantityField.module.css';

const mebibyte = 2 ** 20;

function stepOf(slot: SlotDetails): number {
  if (slot.slot_type === 'bytes') return 256 * mebibyte;
  return slot.slot_name.endsWith('.shares') ? 0.1 : 1;
}

/** Returns an amount in the spelling of the command line. */
function spell(value: number, slot: SlotDetails): string {
  if (slot.slot_type !== 'bytes') return String(Math.round(value * 100) / 100);
  return value % 2 ** 30 === 0 ? `${value / 2 ** 30}g` : `${Math.round(value / mebibyte)}m`;
}

/**
 * The amount of a slot of each kernel: a field, a slider, and what bounds it.
 *
 * A value that exceeds a bound stays and is explained, since waiting for it may be what the person wants.
 */
export function QuantityField({
  slot,
  value,
  onChange,
  limits,
  kernels,
  together,
}: {
  slot: SlotDetails;
  value: string;
  onChange: (value: string) => void;
  limits: Limits;
  kernels: number;
  together: boolean;
}) {
  const { t, i18n } = useTranslation('launch');
  const details = { [slot.slot_name]: slot };
  const label = slotLabel(slot.slot_name, details);
  const amount = value === '' ? 0 : amountOf(value);
  const isMalformed = Number.isNaN(amount);
  const step = stepOf(slot);
  const bounds = Object.values(limits).filter((bound) => Number.isFinite(bound));
  const most = Math.max(step, isMalformed ? 0 : amount, ...bounds.map((bound) => Math.floor(bound / step) * step));
  const over = isMalformed ? [] : exceeded(amount, kernels, together, limits);
  const show = (bound: number) => formatSlot(slot.slot_name, String(bound), details, i18n.language);
  const marks = (['policy', 'group', 'agent'] as const).filter((name) => Number.isFinite(limits[name]));
  return (
    <div className={classes.field}>
      <Group wrap="nowrap" align="flex-end" gap="md">
        <TextInput
          label={label}
          description={slot.slot_name === label ? undefined : slot.slot_name}
          value={value}
          onChange={(event) => onChange(event.currentTarget.value)}
          error={isMalformed ? t('quantity.malformed') : undefined}
          placeholder={t('quantity.default')}
          w={150}
          autoComplete="off"
        />
        <Slider
          className={classes.slider}
          thumbLabel={t('quantity.slider', { name: label })}
          min={0}
          max={most}
          step={step}
          value={isMalformed ? 0 : amount}
          onChange={(next) => onChange(spell(next, slot))}
          label={(next) => show(next)}
          marks={marks.filter((name) => limits[name] <= most).map((name) => ({ value: limits[name] }))}
        />
      </Group>
      <Group gap="xs" mt={4}>
        {marks.map((name) => (
          <Text
            key={name}
            size="xs"
            c={over.includes(name) ? undefined : 'dimmed'}
            data-over={over.includes(name)}
            className={classes.limit}
          >
            {t(`limit.${name}`)} <b>{show(limits[name])}</b>
          </Text>
        ))}
        {over.length > 0 && (
          <Text size="xs" className={classes.limit} data-over="true">
            {t(`over.${over[0] as 'agent'}`)}
          </Text>
        )}
      </Group>
    </div>
  );
}
