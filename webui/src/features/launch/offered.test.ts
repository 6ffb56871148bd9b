import { expect, it } from 'vitest';
import { withLine } from '../../api/forms/lines';
import { offeredOptions, offeredVariants } from './offered';

it('lists properties with the devices that have them', () => {
  const variant = {
    property: 'mock::model::X',
    namespace: 'mock',
    feature: 'model',
    value: 'X',
    match_mode: 'exact' as const,
    device_names: ['mock'],
    devices: { default: 2, other: 1 },
  };
  expect(offeredVariants([variant])).toEqual([{ line: 'mock::model::X', about: 'mock: 3' }]);
});

it('lists options by their schemas, those of two versions once', () => {
  const properties = {
    image: { type: 'string', description: 'A bitstream.' },
    mode: { enum: ['fast', 'safe'], default: 'safe' },
    lanes: { anyOf: [{ type: 'integer', minimum: 1, maximum: 8 }, { type: 'null' }] },
    malformed: 7,
  };
  expect(offeredOptions({ fpga: [{ properties }, { properties: { mode: { const: 1 } } }], odd: [null, {}] })).toEqual([
    { line: 'fpga.image=', about: 'string. A bitstream.' },
    { line: 'fpga.mode=safe', about: 'fast, safe' },
    { line: 'fpga.lanes=', about: 'integer 1…8' },
    { line: 'fpga.malformed=', about: '' },
  ]);
});

it('adds a line once', () => {
  expect(withLine('', 'a')).toBe('a');
  expect(withLine('a\n', 'b')).toBe('a\nb');
  expect(withLine('a\nb', 'b')).toBe('a\nb');
});
