import { screen } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { csvOfContainers, daysOfMonth, faultOf, heldHours, monthOf } from './projects';

describe('periods', () => {
  it('months have their days', () => {
    expect(daysOfMonth('2026-02')).toEqual({ from: '2026-02-01', to: '2026-02-28' });
    expect(daysOfMonth('2028-02').to).toBe('2028-02-29');
    expect(daysOfMonth('2026-12').to).toBe('2026-12-31');
    const now = new Date('2026-11-28T00:00:00Z');
    expect([monthOf('2026-13', now), monthOf(undefined, now), monthOf('2026-01', now)]).toEqual([
      '2026-11',
      '2026-11',
      '2026-01',
    ]);
  });
  it('are of at most 100 days', () => {
    expect(faultOf('2026-01-01', '2026-04-10')).toBeNull();
    expect(faultOf('2026-01-01', '2026-04-11')).toBe('long');
    expect(faultOf('2026-01-02', '2026-01-01')).toBe('reversed');
    expect(faultOf('', '2026-01-01')).toBe('malformed');
    expect(faultOf('2026-13-45', '2026-13-46')).toBe('malformed');
  });
});

it('slots are held for hours, memory for GiB hours', () => {
  expect(heldHours({ cpu: '7200', mem: String(2 ** 30 * 3600), 'cuda.device': '0' })).toEqual([
    { slot: 'cpu', hours: 2 },
    { slot: 'mem', hours: 1 },
  ]);
  expect(heldHours(undefined)).toEqual([]);
});

it('a CSV of containers has no formulas', () => {
  const container = { name: '=cmd()', email: 'a"b,c@example.com', smp: -1 } as never;
  const [heading, line] = csvOfContainers([container]).split('\r\n');
  expect(heading).toMatch(/^name,email,/);
  expect(line).toMatch(/^'=cmd\(\),"a""b,c@example.com",/);
  expect(line).toContain(',-1,');
});

describe('the page of projects', () => {
  let server: FakeServer;
  let role: string;
  let queries: URLSearchParams[];
  const project = {
    g_id: 'g1',
    g_name: 'team',
    domain_name: 'default',
    c_count: 3,
    g_slot_seconds: { cpu: '7200' },
    g_cpu_used: 60,
    g_io_read: 1024,
    g_io_write: 0,
    c_infos: [
      {
        id: 'c1',
        name: 'job',
        email: 'ann@example.com',
        image_name: 'python',
        smp: 2,
        mem_allocated: 1024,
        cpu_used: 60,
        started_at: '2026-01-01T00:00:00Z',
        terminated_at: null,
      },
    ],
  };
  beforeEach(() => {
    role = 'admin';
    queries = [];
    server = new FakeServer();
    server.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'AKIATEST', role, status: 'active' } },
    }));
    server.on('GET /func/resource/usage/month', (_, request) => {
      queries.push(new URL(request.url).searchParams);
      return { body: [project] };
    });
    server.on('GET /func/resource/usage/period', (_, request) => {
      queries.push(new URL(request.url).searchParams);
      return { body: queries.at(-1)?.get('start_date') === '20260101' ? project : {} };
    });
  });

  it('shows a month, and the containers of a project in it', async () => {
    const { router } = openPage('/usage/projects?month=2026-01', server);
    await userEvent.click(await screen.findByRole('link', { name: 'team' }));
    expect(await screen.findByRole('cell', { name: 'ann@example.com' })).toBeDefined();
    expect(screen.getByText('cpu: 2 h')).toBeDefined();
    expect(router.state.location.search).toEqual({ project: 'g1', from: '2026-01-01', to: '2026-01-31' });
    expect(queries.map((query) => [...query.values()])).toEqual([['202601'], ['g1', '20260101', '20260131']]);
  });

  it('asks for nothing by a period that the manager refuses', async () => {
    openPage('/usage/projects?project=g1&from=2026-01-01&to=2027-01-01', server);
    expect(await screen.findByText('A report covers 100 days at most.')).toBeDefined();
    expect(screen.getByRole('button', { name: 'Show' })).toHaveProperty('disabled', true);
    expect(queries).toEqual([]);
  });

  it('says where nothing ran', async () => {
    openPage('/usage/projects?project=g1&from=2026-02-01&to=2026-02-02', server);
    expect(await screen.findByText('Nothing of this project ran in this period')).toBeDefined();
  });

  it('is for administrators', async () => {
    role = 'user';
    openPage('/usage/projects', server);
    expect(await screen.findByText('403')).toBeDefined();
    expect(queries).toEqual([]);
  });
});
