import { formatBytes, formatNumber } from '../../i18n/format';

/** Returns how values of a unit of metrics are written. */
export function formatterOf(unit: string, language: string): (value: number) => string {
  if (unit === 'bytes') return (value) => formatBytes(value, language);
  if (unit === 'bps') return (value) => `${formatBytes(value, language)}/s`;
  if (unit === 'percent') return (value) => `${formatNumber(value, language)} %`;
  if (unit === 'msec') return (value) => `${formatNumber(value / 1000, language)} s`;
  return (value) => formatNumber(value, language);
}
