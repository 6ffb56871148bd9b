import { useQuery } from '@tanstack/react-query';
import { formatBytes, formatNumber } from '../i18n/format';
import { dataOf, rest } from './client';
import type { components } from './generated/rest';
import { keys } from './keys';

export type SlotDetails = components['schemas']['SlotDetails'];

/** Names, units and formats of slots, as the agents' plugins declare them. */
export function useSlotDetails() {
  return useQuery({
    queryKey: keys.slotDetails,
    queryFn: ({ signal }) => dataOf(rest.GET('/config/resource-slots/details', { signal })),
    staleTime: 10 * 60_000,
  });
}

/** Returns an amount of a slot with its unit; a slot without details is told by its own name. */
export function formatSlot(
  name: string,
  amount: string,
  details: Record<string, SlotDetails> | undefined,
  language: string,
): string {
  const value = amount === 'Infinity' ? Number.POSITIVE_INFINITY : Number(amount);
  const slot = details?.[name];
  const isBytes = slot ? slot.slot_type === 'bytes' : name === 'mem';
  if (Number.isFinite(value) && isBytes) return formatBytes(value, language);
  return formatNumber(value, language);
}

/** Returns the name of a slot for people; where another slot has the same, its own name tells them apart. */
export function slotLabel(name: string, details: Record<string, SlotDetails> | undefined): string {
  const label = details?.[name]?.human_readable_name;
  if (!label) return name;
  const isShared = Object.entries(details ?? {}).some(
    ([other, slot]) => other !== name && slot.human_readable_name === label,
  );
  return isShared ? `${label} (${name})` : label;
}
