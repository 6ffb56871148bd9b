import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { isUsers, metricNames, type Process } from './processes';

const process = (pid: number, command: string, metrics: Process['metrics'] = {}) => ({
  kernel: 'main1',
  pid,
  command,
  metrics,
});
const memory = { mem: { current: '1048576', capacity: null, unit_hint: 'bytes' } };

describe('rules', () => {
  it('tell the programs of the sandbox, and put metrics in order', () => {
    expect(['/usr/bin/bwrap --ro-bind', 'bwrap', 'python bwrap.py', ''].map((command) => isUsers({ command }))).toEqual(
      [false, false, true, true],
    );
    const rows = [process(1, 'a', { io: {}, mem: {} }), process(2, 'b', { cpu_util: {} })];
    expect(metricNames(rows)).toEqual(['cpu_util', 'mem', 'io']);
    expect(metricNames([])).toEqual([]);
  });
});

describe('the tab of metrics', () => {
  let server: FakeServer;
  let status: string;
  beforeEach(() => {
    server = new FakeServer();
    status = 'RUNNING';
    server.graphql('compute_session', () => ({ compute_session: { id: 's1', name: 'mine', status, containers: [] } }));
  });
  it('shows what processes use, and those of the sandbox on demand', async () => {
    server.on('GET /func/session/s1/processes', () => ({
      body: { result: [process(7, 'python <train>.py', memory), process(1, '/usr/bin/bwrap --unshare-all')] },
    }));
    openPage('/sessions/s1/metrics', server);
    const table = await screen.findByRole('table', { name: 'Processes' });
    expect(within(table).getByText('python <train>.py')).toBeDefined();
    expect(within(table).getByRole('columnheader', { name: 'Memory' })).toBeDefined();
    expect(within(table).getByText('1 MiB')).toBeDefined();
    expect(within(table).queryByText(/bwrap/)).toBeNull();
    await userEvent.click(screen.getByRole('switch', { name: 'Also those of the sandbox' }));
    expect(await screen.findByText(/bwrap/)).toBeDefined();
  });
  it('says why processes cannot be listed', async () => {
    server.on('GET /func/session/s1/processes', () => ({ status: 502, body: { title: 'The agent is away.' } }));
    openPage('/sessions/s1/metrics', server);
    expect(await screen.findByText('The agent is away.')).toBeDefined();
  });
  it('asks for no processes of an ended session', async () => {
    status = 'TERMINATED';
    openPage('/sessions/s1/metrics', server);
    expect(await screen.findByText('Nothing has been measured yet')).toBeDefined();
    expect(server.requests.filter(({ key }) => key.endsWith('processes'))).toEqual([]);
  });
});
