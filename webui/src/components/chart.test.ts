import { describe, expect, it } from 'vitest';
import { timeRange } from './Chart';

describe('timeRange', () => {
  it.each([
    [
      [100, 200, 400],
      [100, 400],
    ],
    [[100], [40, 100]],
    [[], [null, null]],
  ])('%s', (times, range) => expect(timeRange(times)).toEqual(range));
});
