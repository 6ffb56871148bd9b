import { parseObject } from './filters';

const unitsOfBytes = { '': 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40, p: 2 ** 50 } as const;

/** Returns the bytes of a text such as `20g`; null if it is none. */
export function bytesOf(text: string): number | null {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?\s*$/i.exec(text);
  if (match === null) return null;
  const bytes = Number(match[1]) * unitsOfBytes[(match[2] ?? '').toLowerCase() as keyof typeof unitsOfBytes];
  return Number.isSafeInteger(Math.round(bytes)) ? Math.round(bytes) : null;
}

/** Returns the text of a number of bytes with the largest unit of which it is a whole number. */
export function bytesText(bytes: number): string {
  const [unit, size] = Object.entries(unitsOfBytes).findLast(([, each]) => bytes >= each && bytes % each === 0) ?? [
    '',
    1,
  ];
  return `${bytes / size}${unit}`;
}

const secondsOfUnits = { s: 1, m: 60, h: 3600, d: 86_400 } as const;

/** Returns the seconds of a text such as `90`, `8h` or `1d 12h`; null if it is none. */
export function secondsOf(text: string): number | null {
  if (!/^\s*(\d+\s*[smhd]\s*)+$|^\s*\d+\s*$/i.test(text)) return null;
  const parts = [...text.matchAll(/(\d+)\s*([smhd]?)/gi)];
  const seconds = parts.reduce(
    (sum, [, count, unit]) => sum + Number(count) * secondsOfUnits[(unit?.toLowerCase() || 's') as 's'],
    0,
  );
  return seconds < 2 ** 31 ? seconds : null;
}

/** Returns the text of a number of seconds, such as `1d 12h`. */
export function secondsText(seconds: number): string {
  let rest = seconds;
  const parts: string[] = [];
  for (const [unit, size] of Object.entries(secondsOfUnits).reverse()) {
    if (rest >= size) parts.push(`${Math.floor(rest / size)}${unit}`);
    rest %= size;
  }
  return parts.join(' ') || '0s';
}

/** Returns the slots of lines such as `cpu=2`, as JSON text; null if a line is none. */
export function slotsOfLines(text: string): string | null {
  const entries = text
    .split(/[\n,]/)
    .map((line) => line.trim())
    .filter((line) => line !== '')
    .map((line) => /^([A-Za-z0-9_.-]+)\s*=\s*([0-9.]+[kmgtpKMGTP]?|Infinity)$/.exec(line));
  if (entries.some((entry) => entry === null)) return null;
  return JSON.stringify(Object.fromEntries(entries.map((entry) => [entry?.[1], entry?.[2]])));
}

/** Returns the lines of slots of JSON text, the inverse of `slotsOfLines`; memory has a unit. */
export function linesOfSlots(text: string | null | undefined): string {
  return Object.entries(parseObject(text))
    .map(([name, amount]) => {
      const isWhole = name === 'mem' && Number.isSafeInteger(Number(amount)) && Number(amount) > 0;
      return `${name}=${isWhole ? bytesText(Number(amount)) : amount}`;
    })
    .join('\n');
}
