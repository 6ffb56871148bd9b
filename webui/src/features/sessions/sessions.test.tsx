import { screen, waitFor, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { keys } from '../../api/keys';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import {
  appUrl,
  devicesOf,
  errorOf,
  isLive,
  linesOf,
  measuresOf,
  stagesOf,
  statusArgument,
  toneOf,
  waitOf,
} from './rules';

const waiting = { status: 'PENDING', status_data: '{"scheduler":{"reason":"never-fits","message":"too large"}}' };

describe('rules', () => {
  it('tells what waits apart', () => {
    expect(waitOf(waiting)).toEqual({ reason: 'never-fits', message: 'too large', class: 'never' });
    expect(waitOf({ ...waiting, status: 'RUNNING' })).toBeNull();
    expect(waitOf({ status: 'PENDING', status_data: null })).toBeNull();
    expect(waitOf({ status: 'PENDING', status_data: '{"scheduler":{"reason":"of-tomorrow"}}' })?.class).toBe('time');
  });
  it('has every status in one group', () => {
    expect(statusArgument('all')).toBeNull();
    expect(statusArgument('nonsense')).toBeNull();
    expect(statusArgument('running')).toBe('RUNNING,RUNNING_DEGRADED,RESTARTING');
    expect(isLive('TERMINATING')).toBe(true);
    expect(isLive('ERROR')).toBe(false);
    expect(toneOf('OF_TOMORROW')).toBe('idle');
  });
  it('orders stages and measures them', () => {
    const history =
      '{"RUNNING":"2026-01-01T00:00:10Z","PENDING":"2026-01-01T00:00:00Z","SCHEDULED":"2026-01-01T00:00:10Z","x":3,"y":"?"}';
    expect(stagesOf(history, true, new Date('2026-01-01T00:01:10Z'))).toEqual([
      { status: 'PENDING', at: '2026-01-01T00:00:00Z', seconds: 10 },
      { status: 'RUNNING', at: '2026-01-01T00:00:10Z', seconds: 0 },
      { status: 'SCHEDULED', at: '2026-01-01T00:00:10Z', seconds: 60 },
    ]);
    expect(stagesOf(history, false, new Date()).at(-1)?.seconds).toBeNull();
    expect(stagesOf('[', true, new Date())).toEqual([]);
  });
  it.each([
    ['{"error":"broken"}', 'broken'],
    ['{"error":{"message":"no space"}}', 'no space'],
    ['{"error":{"code":7}}', '{"code":7}'],
    ['{}', ''],
    [null, ''],
  ])('reads the error of %s', (data, text) => expect(errorOf(data)).toBe(text));
  it('reads devices and measures of what agents say', () => {
    expect(devicesOf('{"cuda":[{"device_id":"0","model_name":"A","data":{"smp":8}}],"x":7}')).toEqual([
      { plugin: 'cuda', id: '0', model: 'A', data: '{"smp":8}' },
    ]);
    expect(
      measuresOf('{"mem":{"current":"10","capacity":"20","unit_hint":"bytes"},"bad":{"current":"?"},"n":null}'),
    ).toEqual([{ name: 'mem', current: 10, capacity: 20, unit: 'bytes' }]);
  });
  it('leads apps to http and https only', () => {
    const service = { name: 'ttyd', protocol: 'http' };
    expect(appUrl('https://apps.example.com/', 'a/b', 'id', service)).toBe(
      'https://apps.example.com/v2/proxy/a%2Fb/id/add?app=ttyd&protocol=http&redirect=%2F',
    );
    expect(appUrl('javascript:alert(1)', 't', 'id', service)).toBeNull();
    expect(appUrl('nonsense', 't', 'id', service)).toBeNull();
  });
  it('reads lines as a terminal shows them', () => {
    expect(linesOf('a\u001b[31mred\u001b[0m\r\n10%\r100%\n\u001b]0;title\u0007b\n')).toEqual(['ared', '100%', 'b']);
    expect(linesOf('')).toEqual([]);
  });
});

const row = (index: number, more: object = {}) => ({
  id: `id-${index}`,
  name: `train-${index}`,
  type: 'interactive',
  status: 'RUNNING',
  status_info: null,
  status_data: null,
  image: 'python',
  user_email: 'ann@example.com',
  group_name: 'team',
  scaling_group: 'default',
  cluster_size: 1,
  requested_slots: '{"cpu":"1"}',
  created_at: '2026-01-01T00:00:00Z',
  started_at: null,
  terminated_at: null,
  ...more,
});

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
});
const answerList = (...rows: object[]) =>
  server.graphql('compute_session_list', () => ({ compute_session_list: { total_count: rows.length, items: rows } }));

describe('the list of sessions', () => {
  it('shows rows with the reason of a wait', async () => {
    answerList(row(1), row(2, { ...waiting, name: 'big' }));
    openPage('/sessions', server);
    const table = await screen.findByRole('table', { name: 'Sessions' });
    expect(await within(table).findByRole('link', { name: 'train-1' })).toBeDefined();
    expect(within(table).getByText('Larger than every agent')).toBeDefined();
    expect(screen.getByText('2 sessions')).toBeDefined();
  });
  it('is not drawn as empty while it loads', async () => {
    server.graphql('compute_session_list', () => new Promise(() => undefined));
    openPage('/sessions', server);
    expect(await screen.findByRole('status', { name: 'Loading' })).toBeDefined();
    expect(screen.queryByText(/No session/)).toBeNull();
  });
  it('says which kind of empty it is, and shows all', async () => {
    answerList();
    const { router } = openPage('/sessions?q=nothing', server);
    await screen.findByText('No session matches');
    await userEvent.click(screen.getByRole('button', { name: 'Show all sessions' }));
    await screen.findByText('There are no sessions yet');
    expect(router.state.location.search).toEqual({ status: 'all' });
  });
  it('tells an error with its request', async () => {
    server.on('gql compute_session_list', () => ({
      status: 503,
      body: { title: 'The database is away.', request_id: 'r-7' },
    }));
    openPage('/sessions', server);
    const alert = await screen.findByRole('alert');
    expect(alert.textContent).toContain('The database is away.');
    expect(alert.textContent).toContain('r-7');
  });
  it('keeps old rows when a renewal fails', async () => {
    answerList(row(1));
    const { client } = openPage('/sessions', server);
    await screen.findByRole('link', { name: 'train-1' });
    server.on('gql compute_session_list', () => ({ status: 500, body: { title: 'broken' } }));
    await client.invalidateQueries({ queryKey: keys.sessions });
    expect((await screen.findByRole('alert')).textContent).toContain('broken');
    expect(screen.getByRole('link', { name: 'train-1' })).toBeDefined();
  });
  it('asks the server for filter, status and a stable order', async () => {
    answerList(row(1));
    openPage('/sessions?q=train&status=running&sort=name', server);
    await screen.findByRole('link', { name: 'train-1' });
    expect(server.requests.find(({ key }) => key === 'gql compute_session_list')?.body.variables).toEqual({
      limit: 50,
      offset: 0,
      status: 'RUNNING,RUNNING_DEGRADED,RESTARTING',
      filter: 'name ilike "%train%"',
      order: 'name,id',
      access_key: null,
    });
  });
  it('has few rows in the document, however many there are', async () => {
    server.graphql('compute_session_list', ({ offset, limit }) => ({
      compute_session_list: {
        total_count: 10_000,
        items: Array.from({ length: Number(limit) }, (_, index) => row(Number(offset) + index)),
      },
    }));
    openPage('/sessions', server);
    await screen.findByRole('link', { name: 'train-1' });
    expect(screen.getByRole('table').getAttribute('aria-rowcount')).toBe('10001');
    expect(screen.getAllByRole('row').length).toBeLessThan(80);
  });
  it('keeps what could not be terminated selected', async () => {
    answerList(row(1), row(2));
    server.on('DELETE /func/session/id-1', () => ({ body: { stats: {} } }));
    server.on('DELETE /func/session/id-2', () => ({ status: 409, body: { title: 'The agent is lost.' } }));
    openPage('/sessions', server);
    await userEvent.click(await screen.findByLabelText('Select the rows that are loaded'));
    await userEvent.click(screen.getByRole('button', { name: 'Terminate' }));
    const dialog = await screen.findByRole('dialog', { name: 'Terminate 2 sessions?' });
    await userEvent.click(within(dialog).getByRole('button', { name: 'Terminate' }));
    expect((await within(dialog).findByRole('alert')).textContent).toContain('train-2: The agent is lost.');
    await waitFor(() => expect(screen.getByText('1 selected')).toBeDefined());
  });
  it('offers no selection of ended sessions', async () => {
    answerList(row(1), row(2, { status: 'TERMINATED' }));
    openPage('/sessions?status=all', server);
    expect(await screen.findByLabelText('Select train-1')).toBeDefined();
    expect(screen.queryByLabelText('Select train-2')).toBeNull();
  });
  it('shows hostile names as text', async () => {
    answerList(row(1, { name: '<img src=x onerror=alert(1)>' }));
    const { container } = openPage('/sessions', server);
    await screen.findByRole('link', { name: '<img src=x onerror=alert(1)>' });
    expect(container.querySelector('img')).toBeNull();
  });
});

describe('one session', () => {
  const details = {
    ...row(1),
    status_history: '{"PENDING":"2026-01-01T00:00:00Z","RUNNING":"2026-01-01T00:00:05Z"}',
    containers: [],
    dependencies: [],
    mounts: [],
  };
  it('shows its stages', async () => {
    server.graphql('compute_session', () => ({ compute_session: details }));
    openPage('/sessions/id-1', server);
    expect(await screen.findByRole('heading', { level: 1, name: 'train-1' })).toBeDefined();
    expect(screen.getByText(/for 5 s/)).toBeDefined();
  });
  it('shows the claim that provides its devices, also in the command that starts another one', async () => {
    server.graphql('compute_session', () => ({ compute_session: { ...details, claim: 'my-gpus' } }));
    openPage('/sessions/id-1', server);
    expect(await screen.findByText('Device claim')).toBeDefined();
    expect(screen.getByText('my-gpus')).toBeDefined();
    expect(await screen.findByText(/--claim my-gpus/)).toBeDefined();
  });
  it('says that there is none', async () => {
    server.graphql('compute_session', () => ({ compute_session: null }));
    openPage('/sessions/id-1', server);
    expect(await screen.findByText('There is no such session')).toBeDefined();
  });
  it('has its tab in the address', async () => {
    server.graphql('compute_session', () => ({ compute_session: details }));
    server.on('GET /func/session/id-1/logs', () => ({ body: { result: { logs: '' } } }));
    const { router } = openPage('/sessions/id-1', server);
    await userEvent.click(await screen.findByRole('tab', { name: 'Logs' }));
    expect(await screen.findByText('There is no output yet')).toBeDefined();
    expect(router.state.location.pathname).toBe('/sessions/id-1/logs');
  });
});
