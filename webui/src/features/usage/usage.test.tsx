import { screen, within } from '@testing-library/react';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { csvOf, type UsageBin, usedMeasures } from './rules';

// There is no canvas to draw on.
vi.mock('../../components/Chart', () => ({ Chart: () => null }));

const amount = (value: number) => ({ value, unit_hint: '' });
const bin = (date: number, cpu: number): UsageBin => ({
  date,
  num_sessions: amount(cpu > 0 ? 1 : 0),
  cpu_allocated: amount(cpu),
  mem_allocated: amount(cpu * 1024 ** 3),
  gpu_allocated: amount(0),
  io_read_bytes: amount(0),
  io_write_bytes: amount(0),
  disk_used: amount(0),
});
const sums = {
  requests: 3,
  errors: 1,
  prompt_tokens: 1200,
  cached_tokens: 0,
  output_tokens: 7,
  estimated_requests: 0,
  busy_s: 2,
};

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
  server.on('GET /func/resource/stats/user/month', () => ({ body: [bin(0, 0), bin(900, 4)] }));
  server.on('GET /func/services/_/usage', () => ({
    body: {
      since: '1970-01-01T00:00:00+00:00',
      until: '1970-01-31T00:00:00+00:00',
      by: 'endpoint',
      groups: [{ key: 'e1', name: 'my-service', ...sums }],
      total: sums,
    },
  }));
});

describe('the page of usage', () => {
  it('shows what sessions held, without measures that nobody used', async () => {
    openPage('/usage', server);
    expect(await screen.findByText('2 on average, 4 at most')).toBeDefined();
    expect(screen.getByText('2 GiB on average, 4 GiB at most')).toBeDefined();
    expect(screen.queryByText('Accelerators')).toBeNull();
    expect(screen.getByRole('button', { name: 'Download as CSV' })).toBeDefined();
  });
  it('shows what tokens used at model services', async () => {
    openPage('/usage', server);
    const table = await screen.findByRole('table', { name: 'Model services in the last 30 days' });
    expect(within(table).getByRole('cell', { name: 'my-service' })).toBeDefined();
    expect(within(table).getByRole('cell', { name: '1,200' })).toBeDefined();
  });
  it('asks for the usage of others only for administrators', async () => {
    openPage('/usage?of=all', server);
    await screen.findByText('2 on average, 4 at most');
    expect(server.requests.some(({ key }) => key.includes('admin'))).toBe(false);
    expect(screen.queryByText('Of all that you see')).toBeNull();
  });
  it('says so where nothing ran', async () => {
    server.on('GET /func/resource/stats/user/month', () => ({ body: [bin(0, 0)] }));
    openPage('/usage', server);
    expect(await screen.findByText('Nothing ran in the last 30 days')).toBeDefined();
  });
});

describe('the rules of usage', () => {
  it('an empty timeline has no measures', () => expect(usedMeasures([])).toEqual([]));
  it('a CSV has a line for each quarter of an hour', () => {
    const lines = csvOf([bin(0, 0), bin(900, 4)]).split('\r\n');
    expect(lines).toHaveLength(4);
    expect(lines[0]).toBe('time,num_sessions,cpu_allocated,mem_allocated,gpu_allocated,disk_used');
    expect(lines[2]).toBe('1970-01-01T00:15:00.000Z,1,4,4294967296,0,0');
  });
});
