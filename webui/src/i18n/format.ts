/** How far a moment is from now, such as "3 minutes ago". */
export function formatRelative(at: Date, now: Date, language: string): string {
  const seconds = Math.round((at.getTime() - now.getTime()) / 1000);
  const format = new Intl.RelativeTimeFormat(language, { numeric: 'auto' });
  const size = Math.abs(seconds);
  if (size < 60) return format.format(seconds, 'second');
  if (size < 3600) return format.format(Math.trunc(seconds / 60), 'minute');
  if (size < 86_400) return format.format(Math.trunc(seconds / 3600), 'hour');
  return format.format(Math.trunc(seconds / 86_400), 'day');
}

/** The moment in full, in the zone of the browser. */
export function formatMoment(at: Date, language: string): string {
  return new Intl.DateTimeFormat(language, { dateStyle: 'medium', timeStyle: 'medium' }).format(at);
}

const units = [
  ['d', '일', 86_400],
  ['h', '시간', 3600],
  ['min', '분', 60],
  ['s', '초', 1],
] as const;

/** A duration by its two largest units, such as "2 h 5 min"; below ten seconds with one decimal place. */
export function formatDuration(seconds: number, language: string): string {
  const isKorean = language === 'ko';
  if (seconds < 10) {
    const tenths = Math.round(Math.max(seconds, 0) * 10) / 10;
    return isKorean ? `${tenths}초` : `${tenths} s`;
  }
  const parts: string[] = [];
  let rest = Math.round(seconds);
  for (const [unit, korean, size] of units) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(isKorean ? `${count}${korean}` : `${count} ${unit}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(' ');
}

const binaryUnits = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** An amount of bytes with a binary unit, to three digits. */
export function formatBytes(bytes: number, language: string): string {
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < binaryUnits.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${formatNumber(value, language)} ${binaryUnits[unit]}`;
}

export function formatNumber(value: number, language: string): string {
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '–';
  return new Intl.NumberFormat(language, {
    maximumSignificantDigits: value >= 1000 ? 21 : 3,
    maximumFractionDigits: 2,
  }).format(value);
}

const decimalPrefixes = ['', 'k', 'M', 'G', 'T', 'P'];

function formatDecimal(amount: number, unit: string, language: string): string {
  let value = amount;
  let place = 0;
  while (Math.abs(value) >= 1000 && place < decimalPrefixes.length - 1) {
    value /= 1000;
    place += 1;
  }
  return `${formatNumber(value, language)} ${decimalPrefixes[place]}${unit}`;
}

/** A measured value with its unit, as the agents name units; `bps` are bytes per second. */
export function formatMeasure(value: number, unit: string, language: string): string {
  switch (unit) {
    case 'bytes':
      return formatBytes(value, language);
    case 'bps':
      return `${formatBytes(value, language)}/s`;
    case 'percent':
      return `${formatNumber(value, language)} %`;
    case 'msec':
      return `${formatNumber(value / 1000, language)} s`;
    case 'celsius':
      return `${formatNumber(value, language)} °C`;
    case 'watt':
      return formatDecimal(value, 'W', language);
    case 'joule':
      return formatDecimal(value, 'J', language);
    case 'hertz':
      return formatDecimal(value, 'Hz', language);
    default:
      return formatNumber(value, language);
  }
}
