import { describe, expect, it } from 'vitest';
import { type SlotDetails, slotLabel } from './slots';

const slot = (label: string) => ({ human_readable_name: label }) as SlotDetails;
const details = {
  cpu: slot('CPU'),
  'mock.device': slot('Mock Device'),
  'mock.shares': slot('Mock Device'),
  'odd.device': slot(''),
};

describe('slotLabel', () => {
  it.each([
    ['cpu', 'CPU'],
    ['mock.device', 'Mock Device (mock.device)'],
    ['mock.shares', 'Mock Device (mock.shares)'],
    ['odd.device', 'odd.device'],
    ['unknown.slot', 'unknown.slot'],
  ])('%s', (name, label) => expect(slotLabel(name, details)).toBe(label));
  it('is the name before the details are there', () => expect(slotLabel('cpu', undefined)).toBe('cpu'));
});
