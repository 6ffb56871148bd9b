import { describe, expect, it } from 'vitest';
import { bytesOf, bytesText, linesOfSlots, secondsOf, secondsText, slotsOfLines } from './amounts';

describe('amounts', () => {
  it.each([
    ['20g', 20 * 2 ** 30],
    ['1.5 GiB', 1.5 * 2 ** 30],
    ['100', 100],
    ['2TB', 2 * 2 ** 40],
    ['', null],
    ['-1', null],
    ['1e9', null],
    ['9999999p', null],
  ])('bytes of %s', (text, bytes) => expect(bytesOf(text)).toBe(bytes));
  it.each([0, 1, 1023, 1024, 1.5 * 2 ** 30, 20 * 2 ** 40])('%s bytes come back', (bytes) =>
    expect(bytesOf(bytesText(bytes))).toBe(bytes),
  );
  it.each([
    ['90', 90],
    ['8h', 28_800],
    [' 1D 12h ', 129_600],
    ['', null],
    ['1x', null],
    ['h', null],
    ['1.5h', null],
    ['-1', null],
    ['99999d', null],
  ])('seconds of %j', (text, seconds) => expect(secondsOf(text)).toBe(seconds));
  it.each([0, 59, 60, 3_661, 129_600])('%s seconds come back', (seconds) =>
    expect(secondsOf(secondsText(seconds))).toBe(seconds),
  );
  it.each([
    ['cpu=2\nmem=4g', '{"cpu":"2","mem":"4g"}'],
    ['cuda.shares=0.5,', '{"cuda.shares":"0.5"}'],
    ['', '{}'],
    ['cpu=Infinity', '{"cpu":"Infinity"}'],
    ['cpu', null],
    ['cpu=two', null],
  ])('slots of %j', (lines, json) => expect(slotsOfLines(lines)).toBe(json));
  it.each([
    ['{"cpu":"2","mem":"4294967296","cuda.shares":"0.5"}', 'cpu=2\nmem=4g\ncuda.shares=0.5'],
    ['{"mem":"Infinity"}', 'mem=Infinity'],
    ['{"mem":"0"}', 'mem=0'],
    [null, ''],
  ])('lines of %s', (json, lines) => expect(linesOfSlots(json)).toBe(lines));
});
