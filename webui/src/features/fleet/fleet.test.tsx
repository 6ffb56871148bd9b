import { configure, screen, waitFor, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { describe, expect, it, vi } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

// A page is imported when it is opened, which takes long on a busy machine.
configure({ asyncUtilTimeout: 8_000 });
vi.setConfig({ testTimeout: 20_000 });

// jsdom has no canvas to draw on.
vi.mock('uplot', () => ({
  default: class {
    setData() {}
    setSize() {}
    destroy() {}
  },
}));

const fleet = {
  columns: [
    'id',
    'status',
    'schedulable',
    'resource_group',
    'location',
    'hardware',
    'available',
    'occupied',
    'kernels',
    'devices',
  ],
  slots: ['cpu'],
  statuses: ['ALIVE', 'LOST'],
  resource_groups: ['default'],
  locations: [['zone', 'rack-1']],
  hardware: ['2 cuda:H100'],
  agents: [
    ['i-1', 0, 1, 0, 0, 0, [8], [2], 1, '0f'],
    ['i-2', 1, 1, 0, 0, 0, [8], [0], 0, '0x'],
  ],
};

function server(): FakeServer {
  const made = new FakeServer();
  made.on('POST /server/login-check', () => ({
    body: { authenticated: true, data: { access_key: 'AKIATEST', role: 'superadmin', status: 'active' } },
  }));
  made.on('GET /func/resource/fleet', () => ({ body: fleet }));
  return made;
}

describe('the fleet', () => {
  it('is a table with the same as the map', async () => {
    openPage('/fleet?view=table', server());
    const table = await screen.findByRole('table');
    const row = within(table).getByRole('row', { name: /i-2/ });
    expect(row.textContent).toContain('LOST');
    expect(row.textContent).toContain('1 failed');
    expect(screen.getByText(/1 is lost or has a failed device/)).toBeTruthy();
  });

  it('is a map whose agents are reached by keys', async () => {
    const { router } = openPage('/fleet', server());
    const map = await screen.findByRole('region', { name: /Map of 2 agents/ });
    map.focus();
    await userEvent.keyboard('{ArrowRight}');
    expect(screen.getByText('i-1: ALIVE, 2 cuda:H100, kernels: 1')).toBeTruthy();
    await userEvent.keyboard('{ArrowRight}{Enter}');
    await waitFor(() => expect(router.state.location.pathname).toBe('/fleet/i-2'));
  });

  it('is filtered by words', async () => {
    openPage('/fleet?view=table&q=lost', server());
    expect(await screen.findByRole('link', { name: 'i-2' })).toBeTruthy();
    expect(screen.queryByRole('link', { name: 'i-1' })).toBeNull();
  });

  it('says why an agent does not take sessions again', async () => {
    const made = server();
    made.graphql('agent', () => ({ agent: { id: 'i-1', status: 'ALIVE', schedulable: false } }));
    made.on('GET /func/resource/agents/i-1/metrics/history', () => ({ body: { step_s: 5, end_s: 0, metrics: {} } }));
    made.graphql('modify_agent', () => ({ modify_agent: { ok: false, msg: 'The agent is being moved.' } }));
    openPage('/fleet/i-1', made);
    await userEvent.click(await screen.findByRole('button', { name: 'Take sessions again' }));
    expect((await screen.findByRole('alert')).textContent).toContain('The agent is being moved.');
  });

  it('draws all metrics of an agent when asked', async () => {
    const made = server();
    made.graphql('agent', () => ({ agent: { id: 'i-1', status: 'ALIVE', schedulable: true } }));
    const metrics = Object.fromEntries(Array.from({ length: 14 }, (_, place) => [`metric_${place}`, [1]]));
    made.on('GET /func/resource/agents/i-1/metrics/history', () => ({ body: { step_s: 5, end_s: 10, metrics } }));
    openPage('/fleet/i-1', made);
    expect(await screen.findByText('metric_11')).toBeDefined();
    expect(screen.queryByText('metric_12')).toBeNull();
    await userEvent.click(screen.getByRole('button', { name: 'Show 2 more charts' }));
    expect(await screen.findByText('metric_13')).toBeDefined();
  });

  it('says that an agent is not there', async () => {
    const made = server();
    made.graphql('agent', () => ({ agent: null }));
    made.on('GET /func/resource/agents/i-9/metrics/history', () => ({
      status: 404,
      body: { title: 'There is no such object.' },
    }));
    openPage('/fleet/i-9', made);
    expect(await screen.findByText('There is no such agent')).toBeTruthy();
  });
});
