import { screen, waitFor, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { taskStateOf } from '../../api/task';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { limitText, referenceOf } from './images';
import { fragmentationOf, percentOf, usageOf } from './rules';

describe('rules', () => {
  it('usage of a host', () => {
    expect(usageOf('{"used_bytes": 5, "capacity_bytes": 10}')).toEqual({ used: 5, capacity: 10 });
    expect([usageOf(null), usageOf('null'), usageOf('broken')]).toEqual([null, null, null]);
    expect([percentOf(1, 3), percentOf(1, 0)]).toEqual([33, 0]);
  });
  it('limits and references of images', () => {
    expect(referenceOf({ registry: 'r.io', name: 'python', tag: '3' })).toBe('r.io/python:3');
    expect(
      limitText([
        { key: 'cpu', min: '1', max: '8' },
        { key: 'mem', min: '64m', max: null },
        { key: 'x', min: '0', max: 'Infinity' },
        { key: 'y', min: '0', max: '2' },
        null,
      ]),
    ).toBe('cpu 1–8, mem ≥ 64m, y ≤ 2');
    expect(limitText([{ key: 'mem', min: '1024', max: 'Infinity' }], (slot, amount) => `${slot}:${amount}`)).toBe(
      'mem ≥ mem:1024',
    );
  });
  it('states of a task', () => {
    expect(taskStateOf('bgtask_updated', '{"current_progress": 1, "total_progress": 4, "message": "m"}')).toEqual({
      state: 'running',
      part: 0.25,
      message: 'm',
    });
    expect(taskStateOf('bgtask_failed', '{}')).toEqual({ state: 'failed', part: null, message: '' });
    expect(taskStateOf('bgtask_done', 'broken')).toBeNull();
  });
});

const fleet = {
  columns: ['id', 'status', 'schedulable', 'resource_group', 'available', 'occupied'],
  slots: ['cpu', 'cuda.device'],
  statuses: ['ALIVE', 'LOST'],
  resource_groups: ['default', 'other'],
  locations: [],
  hardware: [],
  agents: [
    ['a', 0, 1, 0, [8, 4], [2, 3]],
    ['b', 0, 1, 0, [8, 4], [8, 3]],
    ['drained', 0, 0, 0, [8, 4], [0, 0]],
    ['lost', 1, 1, 0, [8, 4], [0, 0]],
    ['elsewhere', 0, 1, 1, [8, null], [0, null]],
  ],
};

describe('fragmentationOf', () => {
  it('counts what is free at one place, of agents that take sessions', () => {
    expect(fragmentationOf(fleet as never, 'default')).toEqual([
      { slot: 'cuda.device', total: 8, free: 2, largest: 1, steps: [{ amount: 1, agents: 2 }] },
      {
        slot: 'cpu',
        total: 16,
        free: 6,
        largest: 6,
        steps: [
          { amount: 6, agents: 1 },
          { amount: 0, agents: 1 },
        ],
      },
    ]);
    expect(fragmentationOf(fleet as never, 'other').map(({ slot }) => slot)).toEqual(['cpu']);
  });
});

describe('pages', () => {
  let server: FakeServer;
  let role: string;
  beforeEach(() => {
    role = 'superadmin';
    server = new FakeServer();
    server.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'AKIATEST', role, status: 'active' } },
    }));
  });
  const record = (id: number, outcome = 'ok') => ({
    id,
    at: '2026-01-01T00:00:00Z',
    email: 'ann@example.com',
    access_key: 'AKIA',
    operation: 'DELETE /session/{s}',
    object_type: 'session',
    object_id: `session-${id}`,
    outcome,
    request_id: 'r',
    detail: {},
  });

  it('of the audit log filters by its address and leads to older records', async () => {
    const asked: string[] = [];
    server.on('GET /func/logs/audit', (_, request) => {
      asked.push(new URL(request.url).search);
      return { body: { items: [record(9), record(7, 'forbidden')], has_more: true } };
    });
    const { router } = openPage('/system/audit?text=session-7', server);
    expect(await screen.findByText('forbidden')).toBeDefined();
    expect(asked[0]).toContain('text=session-7');
    await userEvent.click(screen.getByLabelText('Only what was refused'));
    await waitFor(() => expect(asked.at(-1)).toContain('refused=true'));
    await userEvent.click(await screen.findByRole('link', { name: 'Older' }));
    await waitFor(() => expect(router.state.location.search).toMatchObject({ before: 7, text: 'session-7' }));
    await waitFor(() => expect(asked.at(-1)).toContain('before=7'));
  });

  it('are not for users, and say so', async () => {
    role = 'user';
    for (const path of ['/system/audit', '/registries', '/storage', '/proxies', '/scheduler', '/presets']) {
      const view = openPage(path, server);
      expect(await screen.findByText('403')).toBeDefined();
      view.unmount();
    }
    expect(server.requests.some(({ key }) => /audit|registries|storage|proxies|scheduling/.test(key))).toBe(false);
  });

  it('of settings shows what is set, and what has no effect', async () => {
    const setting = (key: string, more: object) => ({
      key,
      value: 1,
      default: 0,
      is_set: true,
      description: `about ${key}`,
      without_effect: '',
      ...more,
    });
    server.on('GET /func/manager/settings', () => ({
      body: {
        items: [
          setting('api.one', {}),
          setting('api.two', { is_set: false }),
          setting('jwt', { without_effect: 'no tokens are issued' }),
        ],
      },
    }));
    openPage('/system/settings', server);
    expect(await screen.findByText('api.one')).toBeDefined();
    expect(screen.getByText(/no tokens are issued/)).toBeDefined();
    expect(screen.queryByText('api.two')).toBeNull();
    await userEvent.click(screen.getByText('All'));
    expect(await screen.findByText('api.two')).toBeDefined();
  });

  it('of errors clears one, and says when there are none', async () => {
    let logs = [
      {
        log_id: '1',
        created_at: 0,
        user: 'u',
        is_read: false,
        severity: 'error',
        source: 'cli',
        message: 'broke',
        context_lang: '',
        context_env: {},
        request_url: '/x',
        request_status: 500,
        traceback: 'line 1',
      },
    ];
    server.on('GET /func/logs/error', () => ({ body: { logs, count: logs.length } }));
    server.on('POST /func/logs/error/1/clear', () => {
      logs = [];
      return { body: { success: true } };
    });
    openPage('/system/errors', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Details: broke' }));
    expect(screen.getByText(/line 1/)).toBeDefined();
    await userEvent.click(screen.getByRole('button', { name: 'Clear: broke' }));
    expect(await screen.findByText('No errors are reported')).toBeDefined();
  });

  it('of registries adds one, hides nothing of a refusal, and names images', async () => {
    server.graphql('container_registries', () => ({ container_registries: [] }));
    server.graphql('images', () => ({
      images: [
        {
          name: 'python',
          tag: '3',
          registry: 'r.io',
          architecture: 'x86_64',
          aliases: ['py'],
          installed: true,
          installed_agents: ['a'],
          resource_limits: [],
        },
      ],
    }));
    const bodies: unknown[] = [];
    server.graphql('create_container_registry', (variables) => {
      bodies.push(variables);
      return { create_container_registry: { ok: false, msg: 'there is one of that name' } };
    });
    server.graphql('alias_image', (variables) => {
      bodies.push(variables);
      return { alias_image: { ok: true, msg: '' } };
    });
    openPage('/registries', server);
    await userEvent.type(await screen.findByLabelText('Name'), 'r.io');
    await userEvent.type(screen.getByLabelText('URL'), 'https://r.io');
    await userEvent.click(screen.getByRole('button', { name: 'Add the registry' }));
    expect(await screen.findByText(/there is one of that name/)).toBeDefined();
    await userEvent.type(await screen.findByLabelText('Short name for r.io/python:3'), 'p3');
    await userEvent.click(screen.getByRole('button', { name: 'Add a short name for r.io/python:3' }));
    await waitFor(() =>
      expect(bodies.at(-1)).toEqual({ alias: 'p3', target: 'r.io/python:3', architecture: 'x86_64' }),
    );
  });

  it('of storage sets the limit of a user', async () => {
    server.graphql('storage_volume_list', () => ({
      storage_volume_list: {
        total_count: 1,
        items: [{ id: 'local:v', usage: '{"used_bytes":5,"capacity_bytes":10}' }],
      },
    }));
    server.graphql('user', () => ({
      user: { uuid: 'u', email: 'ann@example.com', full_name: 'A', role: 'superadmin', domain_name: 'd', groups: [] },
      keypair: { access_key: 'AKIATEST', is_admin: true, resource_policy: 'default', concurrency_used: 0 },
    }));
    server.graphql('quota_scope', () => ({ quota_scope: { details: { usage_bytes: 1, hard_limit_bytes: null } } }));
    let set: unknown;
    server.graphql('set_quota_scope', (variables) => {
      set = variables;
      return { set_quota_scope: { quota_scope: { id: 'x' } } };
    });
    openPage('/storage?host=local:v&owner=ann@example.com', server);
    expect(await screen.findByText(/in use \(50 %\)/)).toBeDefined();
    await userEvent.type(await screen.findByLabelText('New limit'), '1g');
    await userEvent.click(screen.getByRole('button', { name: 'Set' }));
    await waitFor(() => expect(set).toEqual({ host: 'local:v', scope: 'user:u', bytes: 2 ** 30 }));
  });

  it('of registries asks before it removes, and without the error of the last try', async () => {
    server.graphql('container_registries', () => ({
      container_registries: [{ hostname: 'r.io', config: { url: 'https://r.io', type: 'docker', project: [] } }],
    }));
    server.graphql('images', () => ({
      images: [{ name: 'python', tag: '3', registry: 'r.io', architecture: 'x86_64', aliases: ['py'] }],
    }));
    const removed: unknown[] = [];
    server.graphql('dealias_image', ({ alias }) => {
      removed.push(alias);
      return { dealias_image: { ok: true, msg: '' } };
    });
    server.graphql('delete_container_registry', () => ({
      delete_container_registry: { ok: false, msg: 'It is being scanned.' },
    }));
    openPage('/registries', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Remove the short name py' }));
    let dialog = await screen.findByRole('dialog', { name: 'Remove the short name py?' });
    expect(removed).toEqual([]);
    await userEvent.click(within(dialog).getByRole('button', { name: 'Remove' }));
    await waitFor(() => expect(removed).toEqual(['py']));
    await waitFor(() => expect(screen.queryByRole('dialog')).toBeNull());
    await userEvent.click(screen.getByRole('button', { name: 'Remove: r.io' }));
    dialog = await screen.findByRole('dialog');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Remove' }));
    expect(await within(dialog).findByText(/It is being scanned/)).toBeDefined();
    await userEvent.click(within(dialog).getByRole('button', { name: 'Cancel' }));
    await waitFor(() => expect(screen.queryByRole('dialog')).toBeNull());
    await userEvent.click(screen.getByRole('button', { name: 'Remove: r.io' }));
    expect(within(await screen.findByRole('dialog')).queryByText(/It is being scanned/)).toBeNull();
  });

  it('of storage asks which project is meant where domains share a name', async () => {
    const [first, second] = ['10000000-0000-4000-8000-000000000001', '10000000-0000-4000-8000-000000000002'];
    server.graphql('storage_volume_list', () => ({
      storage_volume_list: { total_count: 1, items: [{ id: 'local:v', usage: null }] },
    }));
    server.graphql('groups', () => ({
      groups: [
        { id: first, name: 'team', domain_name: 'north' },
        { id: second, name: 'team', domain_name: 'south' },
        { id: 'g3', name: 'single', domain_name: 'south' },
      ],
    }));
    server.graphql('quota_scope', () => ({ quota_scope: { details: { usage_bytes: 1, hard_limit_bytes: null } } }));
    let set: unknown;
    server.graphql('set_quota_scope', (variables) => {
      set = variables;
      return { set_quota_scope: { quota_scope: { id: 'x' } } };
    });
    const view = openPage('/storage?host=local:v&owner=team', server);
    expect(await screen.findByText('Several domains have a project team. Choose one:')).toBeDefined();
    expect(screen.queryByRole('button', { name: 'Set' })).toBeNull();
    await userEvent.click(screen.getByRole('link', { name: 'team of the domain south' }));
    await userEvent.type(await screen.findByLabelText('New limit'), '1g');
    await userEvent.click(screen.getByRole('button', { name: 'Set' }));
    await waitFor(() => expect(set).toEqual({ host: 'local:v', scope: `project:${second}`, bytes: 2 ** 30 }));
    view.unmount();
    openPage('/storage?host=local:v&owner=single', server);
    expect(await screen.findByText('project:g3')).toBeDefined();
  });

  it('of app proxies says which do not answer, and removes a circuit', async () => {
    const worker = {
      id: 'w',
      authority: 'worker-1',
      protocol: 'http',
      place: '10-19',
      accepted_traffics: ['interactive'],
      filtered_apps_only: false,
      nodes: 1,
      available_slots: 9,
      occupied_slots: 1,
      updated_at: '2026-01-01T00:00:00Z',
    };
    const circuit = {
      id: 'c',
      app: 'jupyter',
      app_mode: 'interactive',
      protocol: 'http',
      place: '10',
      open_to_public: false,
      user_id: 'u',
      session_ids: ['s1'],
      routes: 1,
      created_at: '2026-01-01T00:00:00Z',
    };
    let circuits = [circuit];
    server.on('GET /func/resource/app-proxies', () => ({
      body: {
        items: [
          { url: 'http://a', resource_groups: ['default'], workers: [worker], problem: '' },
          { url: 'http://b', resource_groups: ['other'], workers: [], problem: 'it is down' },
        ],
      },
    }));
    server.on('GET /func/resource/app-proxies/circuits', () => ({ body: { items: circuits } }));
    server.on('DELETE /func/resource/app-proxies/circuits/c', () => {
      circuits = [];
      return { body: {} };
    });
    openPage('/proxies?group=default&worker=w', server);
    expect(await screen.findByText('it is down')).toBeDefined();
    await userEvent.click(await screen.findByRole('button', { name: 'Remove: jupyter at 10' }));
    await userEvent.click(within(await screen.findByRole('dialog')).getByRole('button', { name: 'Remove' }));
    expect(await screen.findByText('Nobody uses an app by this worker.')).toBeDefined();
  });

  it('of the scheduler compares two policies', async () => {
    server.graphql('scaling_groups', () => ({ scaling_groups: [{ name: 'default' }] }));
    server.on('GET /func/resource/fleet', () => ({ body: fleet }));
    server.on('GET /func/scheduling/replay', (_, request) => {
      const placement = new URL(request.url).searchParams.get('placement') ?? 'dispersed';
      const pass = (name: string, placed: number) => ({
        order: 'fifo',
        placement: name,
        placed,
        reserved: 0,
        evictions: 0,
        reasons: placed ? {} : { 'insufficient-resource': 1 },
      });
      return {
        body: {
          resource_group: 'default',
          at: '',
          waiting: 1,
          agents: 2,
          orders: ['fifo'],
          placements: ['dispersed', 'concentrated'],
          present: pass('dispersed', 0),
          other: pass(placement, placement === 'concentrated' ? 1 : 0),
          items: [
            {
              id: 's',
              name: 'job',
              present: 'insufficient-resource',
              other: placement === 'concentrated' ? 'placed' : 'insufficient-resource',
            },
          ],
        },
      };
    });
    const { router } = openPage('/scheduler', server);
    await userEvent.selectOptions(await screen.findByLabelText('Placement'), 'concentrated');
    expect(await screen.findByText('starts')).toBeDefined();
    expect(router.state.location.search).toMatchObject({ placement: 'concentrated' });
    expect(screen.getAllByText(/2 of 8 free, 1 at most on one agent/)).toHaveLength(1);
  });
});
