import i18next from 'i18next';
import { describe, expect, it } from 'vitest';
import { changeLanguage, chooseLanguage, loadMessages } from '.';
import en from './en';
import { formatBytes, formatDuration, formatMeasure, formatNumber, formatRelative } from './format';
import ko from './ko';
import { later } from './later';

type Messages = { [key: string]: string | Messages };

function flat(messages: Messages, path = ''): [string, string][] {
  return Object.entries(messages).flatMap(([key, value]): [string, string][] =>
    typeof value === 'string' ? [[`${path}${key}`, value]] : flat(value, `${path}${key}.`),
  );
}
const placeholders = (text: string) => [...text.matchAll(/\{\{(\w+)\}\}/g)].map((match) => match[1]).sort();

async function allMessages(language: 'en' | 'ko'): Promise<Messages> {
  const pages = Object.entries(later).map(async ([name, load]) => [name, (await load[language]()).default] as const);
  return { ...(language === 'en' ? en : ko), ...Object.fromEntries(await Promise.all(pages)) } as unknown as Messages;
}

describe('messages', async () => {
  const english = flat(await allMessages('en'));
  const korean = new Map(flat(await allMessages('ko')));
  it('have the same keys', () => expect([...korean.keys()].sort()).toEqual(english.map(([key]) => key).sort()));
  it('have the same placeholders, but for numbers of one', () => {
    const differing = english.filter(([key, text]) => {
      const other = placeholders(korean.get(key) ?? '');
      return !key.endsWith('_one') && !key.endsWith('_other') && placeholders(text).join() !== other.join();
    });
    expect(differing).toEqual([]);
  });
  it('in Korean put no particle behind a value', () => {
    expect([...korean.values()].filter((text) => /\}\}(을|를|이|가|은|는|과|와)(\s|$)/.test(text))).toEqual([]);
  });
});

describe('messages of a page', () => {
  it('come with it and follow a change of language', async () => {
    await loadMessages('queue');
    expect(i18next.t('queue:title')).toBe('Queue');
    await changeLanguage('ko');
    expect(i18next.t('queue:title')).toBe('대기열');
    await changeLanguage('en');
  });
});

describe('chooseLanguage', () => {
  it.each([
    ['ko', ['en'], 'ko'],
    [null, ['fr-FR', 'ko-KR', 'en'], 'ko'],
    [null, ['fr'], 'en'],
    ['xx', [], 'en'],
  ] as const)('%s %s', (stored, preferred, language) => expect(chooseLanguage(stored, preferred)).toBe(language));
});

describe('formats', () => {
  it.each([
    [0.04, '0 s', '0초'],
    [0.26, '0.3 s', '0.3초'],
    [65, '1 min 5 s', '1분 5초'],
    [3600, '1 h', '1시간'],
    [90_061, '1 d 1 h', '1일 1시간'],
    [-3, '0 s', '0초'],
  ])('duration %d', (seconds, english, korean) => {
    expect([formatDuration(seconds, 'en'), formatDuration(seconds, 'ko')]).toEqual([english, korean]);
  });
  it.each([
    [0, '0 B'],
    [1536, '1.5 KiB'],
    [268_435_456, '256 MiB'],
    [49_880_760_320, '46.5 GiB'],
  ])('bytes %d', (bytes, text) => expect(formatBytes(bytes, 'en')).toBe(text));
  it('infinity', () => expect(formatNumber(Number.POSITIVE_INFINITY, 'en')).toBe('∞'));
  it('relative', () => expect(formatRelative(new Date(0), new Date(150_000), 'en')).toBe('2 minutes ago'));
});

it.each([
  [2048, 'bytes', '2 KiB'],
  [2048, 'bps', '2 KiB/s'],
  [12.5, 'percent', '12.5 %'],
  [1500, 'msec', '1.5 s'],
  [71, 'celsius', '71 °C'],
  [350, 'watt', '350 W'],
  [12_300, 'joule', '12.3 kJ'],
  [1_980_000_000, 'hertz', '1.98 GHz'],
  [3, 'count', '3'],
])('%s of %s', (value, unit, text) => expect(formatMeasure(value, unit, 'en')).toBe(text));
