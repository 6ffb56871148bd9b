import { expect, it } from 'vitest';
import { pagesOf, percent, toneOfRemedy } from './rules';

it('each kind of wait has its own look', () => {
  expect(['time', 'others', 'change', null].map(toneOfRemedy)).toEqual(['busy', 'wait', 'bad', 'good']);
});

it('shares are percentages', () => {
  expect(percent(0.375, 'en')).toBe('37.5%');
});

it.each([
  [0, 1],
  [50, 1],
  [51, 2],
])('%d entries have %d pages', (total, pages) => {
  expect(pagesOf(total, 50)).toBe(pages);
});
