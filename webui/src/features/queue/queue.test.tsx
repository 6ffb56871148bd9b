import { configure, screen } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { describe, expect, it, vi } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

// A page is imported when it is opened, which takes long on a busy machine.
configure({ asyncUtilTimeout: 8_000 });
vi.setConfig({ testTimeout: 20_000 });

const entry = {
  position: 3,
  id: 'abc',
  name: 'my-own',
  user_email: 'ann@example.com',
  group_name: 'team',
  type: 'interactive',
  priority: 10,
  cluster_size: 1,
  requested_slots: { cpu: '2' },
  enqueued_at: '2026-01-01T00:00:00Z',
  reason: 'behind-another',
  remedy: 'time',
  message: 'waits behind another session, which came first',
  reserved_agents: 0,
};

function serverWith(items: unknown[], waiting: number): FakeServer {
  const server = new FakeServer();
  server.on('GET /func/scaling-groups', () => ({ body: { scaling_groups: [{ name: 'default' }] } }));
  server.on('GET /func/scheduling/queue', () => ({
    body: {
      resource_group: 'default',
      order: 'fifo',
      waiting,
      total_count: items.length,
      reserved_agents: 1,
      reasons: {},
      items,
      at: '',
    },
  }));
  server.on('GET /func/scheduling/shares', () => ({
    body: { resource_group: 'default', order: 'fifo', half_life_s: 1, capacity: {}, items: [], at: '' },
  }));
  server.on('GET /func/session/abc/explain', () => ({
    body: {
      verdict: 'waits',
      message: 'behind',
      position: 3,
      waiting: 4,
      holders: { count: 2, visible: [] },
      agents: { total: 5, startable: 0 },
    },
  }));
  return server;
}

describe('the page of a queue', () => {
  it('shows the true place and why', async () => {
    openPage('/queue', serverWith([entry], 4));
    expect(await screen.findByRole('link', { name: 'my-own' })).toBeTruthy();
    expect(screen.getByText('Behind another session')).toBeTruthy();
    expect(screen.getByText(/3 of them are of others/)).toBeTruthy();
    await userEvent.click(screen.getByRole('button', { name: 'Why my-own waits' }));
    expect(await screen.findByText('3 of 4')).toBeTruthy();
    expect(screen.getByText('2 sessions of others')).toBeTruthy();
  });

  it('tells a queue of others from an empty one', async () => {
    openPage('/queue', serverWith([], 2));
    expect(await screen.findByText('None of the waiting sessions is yours.')).toBeTruthy();
  });

  it('shows a failure with what to do', async () => {
    const server = serverWith([], 0);
    server.on('GET /func/scheduling/queue', () => ({ status: 404, body: { title: 'There is no such object.' } }));
    openPage('/queue?group=gone', server);
    expect(await screen.findByText('There is no such object.')).toBeTruthy();
  });
});
