import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

const id = '11111111-2222-4333-8444-555555555555';
const replicaId = 'aaaaaaaa-2222-4333-8444-555555555555';
const row = {
  endpoint_id: id,
  name: 'my-service',
  status: 'degraded',
  status_reason: 'some-ready',
  desired_session_count: 2,
  ready_count: 1,
  url: 'http://127.0.0.1:10200/',
  open_to_public: false,
  session_owner_email: 'ann@example.com',
  created_at: '2026-01-01T00:00:00Z',
};
const revision = {
  id: 'r2',
  number: 2,
  status: 'rolling-out',
  reason: 'rollout-started',
  image: 'python',
  model_name: 'tiny',
  weight: 1,
  step: 0,
  step_since: '2026-01-01T00:00:00Z',
  created_at: '2026-01-01T00:00:00Z',
};
const replica = {
  route_id: replicaId,
  session_id: replicaId,
  traffic_ratio: 1,
  status: 'warming',
  reason: 'session-started',
  detail: null,
  revision: 2,
};
const details = {
  endpoint_id: id,
  name: 'my-service',
  status: 'degraded',
  reason: 'some-ready',
  model_id: 'f1',
  model_name: 'tiny',
  model_version: null,
  model_definition_path: 'model-definition.yaml',
  model_mount_destination: '/models',
  image: 'python',
  architecture: null,
  runtime_variant: 'vllm',
  served_model: null,
  startup_command: 'serve --fast',
  bootstrap_script: null,
  port: null,
  environ: { A: '1', B: 'x=y' },
  secret_names: ['API_KEY'],
  resources: { cpu: '1' },
  resource_opts: {},
  cluster_size: 1,
  cluster_mode: 'single-node',
  tag: 'mine',
  desired_session_count: 2,
  replicas: 2,
  active_routes: [replica],
  revisions: [revision, { ...revision, id: 'r1', number: 1, status: 'active', reason: 'promoted', weight: 3 }],
  service_endpoint: 'http://127.0.0.1:10200/',
  is_public: false,
  domain: 'default',
  project: 'team',
  resource_group: 'default',
  created_at: '2026-01-01T00:00:00Z',
  policy: {},
};

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
  server.graphql('endpoint_list', () => ({ endpoint_list: { total_count: 1, items: [row] } }));
  server.on(`GET /func/services/${id}`, () => ({ body: details }));
  server.on(`GET /func/services/${id}/why`, () => ({
    body: {
      name: 'my-service',
      status: 'degraded',
      reason: 'some-ready',
      explanation: 'one more replica is started',
      problem: 'no agent has 8 GPUs',
      replicas: [replica],
      obstacles: { [replicaId]: '/health answers 503' },
    },
  }));
});
const sent = (key: string) => server.requests.filter((request) => request.key === key).map(({ body }) => body);

describe('the list of services', () => {
  it('shows each with its state, reason, replicas, URL and owner', async () => {
    openPage('/services', server);
    expect(await screen.findByRole('link', { name: 'my-service' })).toBeDefined();
    for (const text of ['degraded', 'Fewer replicas are ready than are wanted', '1 of 2 ready', row.url])
      expect(screen.getByText(text)).toBeDefined();
    expect(screen.getByText('ann@example.com')).toBeDefined();
  });
  it('filters and orders on the server, as its address says', async () => {
    openPage('/services?q=llama&sort=name', server);
    await screen.findByRole('link', { name: 'my-service' });
    expect(sent('gql endpoint_list')[0]?.variables).toEqual({
      limit: 50,
      offset: 0,
      filter: 'name ilike "%llama%"',
      order: 'name,id',
    });
  });
  it('is not empty while it loads', async () => {
    server.graphql('endpoint_list', () => new Promise(() => {}));
    openPage('/services', server);
    expect(await screen.findByRole('heading', { name: 'Model services' })).toBeDefined();
    expect(await screen.findByRole('status')).toBeDefined();
    expect(screen.queryByText('There are no model services yet')).toBeNull();
  });
  it('tells none from none that match', async () => {
    server.graphql('endpoint_list', () => ({ endpoint_list: { total_count: 0, items: [] } }));
    const { router } = openPage('/services', server);
    expect(await screen.findByText('There are no model services yet')).toBeDefined();
    void router.navigate({ to: '/services', search: { q: 'zzz' } });
    expect(await screen.findByText('No service matches')).toBeDefined();
  });
  it('shows a failure with another try, and keeps what was there', async () => {
    const { client } = openPage('/services', server);
    await screen.findByRole('link', { name: 'my-service' });
    server.on('gql endpoint_list', () => ({ status: 503, body: { title: 'The database is away.' } }));
    void client.invalidateQueries({ queryKey: ['sessions'] });
    expect(await screen.findByText('The database is away.')).toBeDefined();
    expect(screen.getByRole('link', { name: 'my-service' })).toBeDefined();
    expect(screen.getByRole('button', { name: 'Try again' })).toBeDefined();
  });
});

describe('one service', () => {
  it('says why it is so, what cannot be done, and how it is called', async () => {
    openPage(`/services/${id}`, server);
    expect(await screen.findByText('one more replica is started')).toBeDefined();
    expect(screen.getByText('no agent has 8 GPUs')).toBeDefined();
    expect(screen.getByText('/health answers 503')).toBeDefined();
    expect(screen.getByText('curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:10200/v1/models')).toBeDefined();
  });
  it('shows what tokens used, summed up as its address says', async () => {
    const sums = {
      requests: 3,
      errors: 0,
      prompt_tokens: 1200,
      cached_tokens: 0,
      output_tokens: 7,
      estimated_requests: 0,
      busy_s: 2,
    };
    server.on(`GET /func/services/${id}/usage`, (_, request) => {
      const by = new URL(request.url).searchParams.get('by');
      const groups = [{ key: 'abcdef0123456789', name: null, ...sums }];
      return { body: { since: '', until: '', by, groups: by === 'token' ? groups : [], total: sums } };
    });
    const { router } = openPage(`/services/${id}/usage`, server);
    expect(await screen.findByText('Nobody has called it in the last 30 days')).toBeDefined();
    void router.navigate({ to: '/services/$id/$tab', params: { id, tab: 'usage' }, search: { by: 'token' } });
    expect(await screen.findByRole('cell', { name: 'abcdef01' })).toBeDefined();
    expect(screen.getByRole('cell', { name: '1,200' })).toBeDefined();
  });
  it('does not exist for others', async () => {
    server.on(`GET /func/services/${id}`, () => ({ status: 404, body: { title: 'There is no such endpoint.' } }));
    openPage(`/services/${id}`, server);
    expect((await screen.findByRole('alert')).textContent).toContain('There is no such endpoint.');
    expect(screen.queryByRole('button', { name: 'Destroy' })).toBeNull();
  });
  it('shows each replica with its session and what it waits for', async () => {
    openPage(`/services/${id}/replicas`, server);
    const link = await screen.findByRole('link', { name: 'aaaaaaaa' });
    expect(link.getAttribute('href')).toContain(`/sessions/${replicaId}`);
    expect(screen.getByText('/health answers 503')).toBeDefined();
  });
  it('rolls back the revision that is on its way, after a question', async () => {
    server.on(`POST /func/services/${id}/rollback`, () => ({ body: { success: true } }));
    openPage(`/services/${id}/revisions`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Roll back' }));
    expect(screen.getByText('75 %')).toBeDefined();
    const dialog = await screen.findByRole('dialog', { name: 'Roll back revision 2?' });
    expect(sent(`POST /func/services/${id}/rollback`)).toHaveLength(0);
    await userEvent.click(within(dialog).getByRole('button', { name: 'Roll back' }));
    await expect.poll(() => sent(`POST /func/services/${id}/rollback`)).toHaveLength(1);
  });
  const canary = {
    kind: 'canary',
    steps: [
      { weight: 10, hold_s: null },
      { weight: 50, hold_s: 300 },
    ],
    guard: { max_error_rate: 0.05, max_ttft_ratio: 1.5, min_token_rate_ratio: null, min_requests: 20 },
  };
  it('says how a canary is rolled out and guarded, and promotes it after a question', async () => {
    server.on(`GET /func/services/${id}`, () => ({ body: { ...details, policy: canary } }));
    server.on(`POST /func/services/${id}/promote`, () => ({ body: { success: true } }));
    openPage(`/services/${id}/revisions`, server);
    expect(await screen.findByText('10 % until it is promoted · 50 % for 5 min')).toBeDefined();
    expect(
      screen.getByText(/^at most 5 % of the requests fail · the first byte .* 1.5 times .* 20 requests/),
    ).toBeDefined();
    expect(screen.getByText('Revision 2 has kept it so far')).toBeDefined();
    expect(screen.getByText('when you promote it')).toBeDefined();
    expect(await screen.findByText('one more replica is started')).toBeDefined();
    await userEvent.click(screen.getByRole('button', { name: 'Promote' }));
    const dialog = await screen.findByRole('dialog', { name: 'Promote revision 2?' });
    expect(sent(`POST /func/services/${id}/promote`)).toHaveLength(0);
    await userEvent.click(within(dialog).getByRole('button', { name: 'Promote' }));
    await expect.poll(() => sent(`POST /func/services/${id}/promote`)).toHaveLength(1);
  });
  it('offers no promotion where no step can be ended, and tells a broken guard', async () => {
    const broken = { ...revision, status: 'failed', reason: 'guard-tripped' };
    server.on(`GET /func/services/${id}`, () => ({
      body: { ...details, policy: canary, revisions: [broken, details.revisions[1]] },
    }));
    openPage(`/services/${id}/revisions`, server);
    expect(await screen.findByText('Revision 2 broke it and was rolled back')).toBeDefined();
    expect(screen.getByText('Nothing is being rolled out')).toBeDefined();
    expect(screen.queryByRole('button', { name: 'Promote' })).toBeNull();
  });
  it('changes the weights of a canary', async () => {
    server.on(`GET /func/services/${id}`, () => ({ body: { ...details, policy: canary } }));
    server.on(`PATCH /func/services/${id}`, () => ({ body: details }));
    openPage(`/services/${id}/revisions`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Change the roll-out' }));
    const dialog = await screen.findByRole('dialog');
    const steps = within(dialog).getByLabelText('Steps of the canary');
    await userEvent.clear(steps);
    await userEvent.type(steps, 'much');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    expect(steps.getAttribute('aria-invalid')).toBe('true');
    await userEvent.clear(steps);
    await userEvent.type(steps, '25% 1h');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect
      .poll(() => sent(`PATCH /func/services/${id}`))
      .toEqual([{ policy: { kind: 'canary', steps: [{ weight: 25, hold_s: 3600 }], guard: canary.guard } }]);
  });
  it('gives a replica another weight, and ends one after a question', async () => {
    const path = `/func/services/${id}/routings/${replicaId}`;
    server.on(`PUT ${path}`, () => ({ body: { success: true } }));
    server.on(`DELETE ${path}`, () => ({ body: { success: true } }));
    openPage(`/services/${id}/replicas`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Weight: aaaaaaaa' }));
    let dialog = await screen.findByRole('dialog');
    await userEvent.clear(within(dialog).getByLabelText('Weight'));
    await userEvent.type(within(dialog).getByLabelText('Weight'), '0.5');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect.poll(() => sent(`PUT ${path}`)).toEqual([{ traffic_ratio: 0.5 }]);
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    await userEvent.click(screen.getByRole('button', { name: 'End: aaaaaaaa' }));
    dialog = await screen.findByRole('dialog', { name: 'End replica aaaaaaaa?' });
    expect(sent(`DELETE ${path}`)).toHaveLength(0);
    await userEvent.click(within(dialog).getByRole('button', { name: 'End it' }));
    await expect.poll(() => sent(`DELETE ${path}`)).toHaveLength(1);
  });
  it('leads to all tokens by pages', async () => {
    const offsets: unknown[] = [];
    server.graphql('endpoint_token_list', ({ offset }) => {
      offsets.push(offset);
      const token = { created_at: '2026-01-01T00:00:00Z', valid_until: '2026-01-02T00:00:00Z' };
      return { endpoint_token_list: { total_count: 21, items: [token] } };
    });
    openPage(`/services/${id}/tokens`, server);
    expect(await screen.findByText('21 tokens')).toBeDefined();
    await userEvent.click(screen.getByRole('button', { name: 'Next' }));
    await expect.poll(() => offsets.at(-1)).toBe(20);
    expect(screen.getByRole<HTMLButtonElement>('button', { name: 'Next' }).disabled).toBe(true);
    await userEvent.click(screen.getByRole('button', { name: 'Previous' }));
    await expect.poll(() => screen.getByRole<HTMLButtonElement>('button', { name: 'Next' }).disabled).toBe(false);
  });
  it('shows a new token once', async () => {
    server.graphql('endpoint_token_list', () => ({ endpoint_token_list: { total_count: 0, items: [] } }));
    server.on(`POST /func/services/${id}/token`, () => ({ body: { token: 's3cret' } }));
    const { router } = openPage(`/services/${id}/tokens`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Make a token' }));
    expect(await screen.findByText('s3cret')).toBeDefined();
    expect(sent(`POST /func/services/${id}/token`)).toEqual([{ duration: '1d' }]);
    expect(screen.getByRole('button', { name: 'Copy the token' })).toBeDefined();
    void router.navigate({ to: '/services/$id/$tab', params: { id, tab: 'replicas' } });
    await screen.findByRole('link', { name: 'aaaaaaaa' });
    void router.navigate({ to: '/services/$id/$tab', params: { id, tab: 'tokens' } });
    await screen.findByRole('button', { name: 'Make a token' });
    expect(screen.queryByText('s3cret')).toBeNull();
  });
  it('puts what is wrong with the time of a token at its field', async () => {
    server.graphql('endpoint_token_list', () => ({ endpoint_token_list: { total_count: 0, items: [] } }));
    server.on(`POST /func/services/${id}/token`, () => ({
      status: 400,
      body: { title: 'A token is valid until a time in the next 365 days.', data: { duration: 'out of range' } },
    }));
    openPage(`/services/${id}/tokens`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Make a token' }));
    const field = screen.getByRole('textbox', { name: 'Valid for' });
    await expect.poll(() => field.getAttribute('aria-invalid')).toBe('true');
    expect(screen.getByText(/in the next 365 days/)).toBeDefined();
  });
  it('pages through its history by its address', async () => {
    const paths: string[] = [];
    server.on(`GET /func/services/${id}/history`, (_, request) => {
      const { searchParams } = new URL(request.url);
      paths.push(`${searchParams.get('limit')} ${searchParams.get('offset')}`);
      const events = Array.from({ length: 51 }, (_unused, index) => ({
        at: '2026-01-01T00:00:00Z',
        subject: `replica ${index}`,
        status: 'ready',
        reason: 'never-heard-of',
        detail: null,
        data: {},
      }));
      return { body: { events } };
    });
    openPage(`/services/${id}/history`, server);
    expect(await screen.findByText('replica 49')).toBeDefined();
    expect(screen.queryByText('replica 50')).toBeNull();
    expect(screen.getAllByText('never-heard-of')).toHaveLength(50);
    await userEvent.click(screen.getByRole('button', { name: 'Older' }));
    await expect.poll(() => paths).toEqual(['51 0', '51 50']);
  });
  it('scales', async () => {
    server.on(`POST /func/services/${id}/scale`, () => ({
      status: 400,
      body: { title: 'An endpoint has 0 to 8 replicas.', data: { desired_session_count: 'out of range' } },
    }));
    openPage(`/services/${id}`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Scale' }));
    const dialog = await screen.findByRole('dialog');
    const field = within(dialog).getByRole('textbox', { name: 'Replicas' });
    await userEvent.clear(field);
    await userEvent.type(field, '9');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Scale' }));
    expect(await within(dialog).findByText('An endpoint has 0 to 8 replicas.')).toBeDefined();
    expect(sent(`POST /func/services/${id}/scale`)).toEqual([{ to: 9 }]);
  });
  it('is destroyed once its name was typed, and its loss is said', async () => {
    server.on(`DELETE /func/services/${id}`, () => ({ body: { success: true } }));
    openPage(`/services/${id}`, server);
    const open = async () => {
      await userEvent.click(await screen.findByRole('button', { name: 'Destroy' }));
      return screen.findByRole('dialog');
    };
    const first = await open();
    expect(first.textContent).toContain('Its replica ends');
    await userEvent.type(within(first).getByRole('textbox'), details.name);
    await userEvent.click(within(first).getByRole('button', { name: 'Cancel' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    // What was typed for another time counts for nothing.
    const dialog = await open();
    const button = within(dialog).getByRole<HTMLButtonElement>('button', { name: 'Destroy' });
    expect(button.disabled).toBe(true);
    await userEvent.type(within(dialog).getByRole('textbox'), details.name);
    await userEvent.click(button);
    await expect.poll(() => sent(`DELETE /func/services/${id}`)).toHaveLength(1);
  });
});

describe('the form of a service', () => {
  const address = '/services/new?name=my-service&model=tiny&image=python&r=cpu%3D1';
  beforeEach(() => {
    server.graphql('images', () => ({ images: [{ name: 'python', tag: '3', aliases: ['python'] }] }));
    server.on('GET /func/folders', () => ({ body: [{ id: 'f1', name: 'tiny' }] }));
    server.on('GET /func/services/_/runtimes', () => ({
      body: { runtimes: [{ name: 'custom', title: 'a custom server', command: null, health_path: '/health' }] },
    }));
    server.on('GET /func/scaling-groups', () => ({ body: { scaling_groups: [{ name: 'default' }] } }));
    server.on('GET /func/config/resource-slots/details', () => ({
      body: { cpu: { slot_name: 'cpu', human_readable_name: 'CPU', description: 'CPU', slot_type: 'count' } },
    }));
  });
  it('creates what its address says, and goes there', async () => {
    server.on('POST /func/services', () => ({ status: 201, body: details }));
    openPage(address, server);
    await screen.findByDisplayValue('default');
    await userEvent.click(await screen.findByRole('button', { name: 'Create' }));
    expect(await screen.findByText('one more replica is started')).toBeDefined();
    expect(sent('POST /func/services')).toEqual([
      {
        name: 'my-service',
        image: 'python',
        runtime_variant: 'custom',
        desired_session_count: 1,
        open_to_public: false,
        group: 'team',
        config: { model: 'tiny', scaling_group: 'default', resources: { cpu: '1' } },
      },
    ]);
  });
  it('takes the rarer options, and its address has no variables', async () => {
    server.on('POST /func/services', () => ({ status: 201, body: details }));
    const { router } = openPage(address, server);
    await userEvent.click(await screen.findByRole('button', { name: 'More options' }));
    await userEvent.click(await screen.findByLabelText('Environment'));
    await userEvent.paste('KEY=secret');
    await userEvent.click(screen.getByLabelText('Device claim'));
    await userEvent.paste('gpus');
    await userEvent.type(screen.getByLabelText('Port'), '80');
    expect(await screen.findByText('Correct the marked fields first.')).toBeDefined();
    await userEvent.type(screen.getByLabelText('Port'), '80');
    await expect.poll(() => router.state.location.search).toMatchObject({ claim: 'gpus', port: '8080' });
    expect(JSON.stringify(router.state.location)).not.toContain('secret');
    expect(screen.queryByLabelText('Owner')).toBeNull();
    await userEvent.click(screen.getByRole('button', { name: 'Create' }));
    await expect
      .poll(() => sent('POST /func/services'))
      .toMatchObject([{ port: 8080, config: { claim: 'gpus', environ: { KEY: 'secret' } } }]);
  });
  it('takes a roll-out policy and device requests', async () => {
    server.on('POST /func/services', () => ({ status: 201, body: details }));
    openPage(address, server);
    await userEvent.click(await screen.findByRole('button', { name: 'More options' }));
    await userEvent.click(await screen.findByLabelText('Device requests'));
    await userEvent.paste('memory >= 40g');
    await userEvent.click(screen.getByLabelText('A roll-out policy of its own'));
    await userEvent.selectOptions(await screen.findByLabelText('New revisions come'), 'canary');
    const steps = await screen.findByRole('textbox', { name: /^Steps/ });
    await userEvent.clear(steps);
    await userEvent.click(steps);
    await userEvent.paste('10% 5m');
    await userEvent.click(screen.getByRole('button', { name: 'Create' }));
    await expect
      .poll(() => sent('POST /func/services'))
      .toMatchObject([
        {
          policy: { kind: 'canary', steps: [{ weight: 10, hold_s: 300 }] },
          config: { device_requests: ['memory >= 40g'] },
        },
      ]);
  });
  it('shows a refused option among those that are hidden else', async () => {
    server.on('POST /func/services/_/try', () => ({
      status: 404,
      body: { title: 'There is no claim gpus.', data: { 'config.claim': 'unknown' } },
    }));
    openPage(address, server);
    const toggle = await screen.findByRole('button', { name: 'More options' });
    expect(toggle.getAttribute('aria-expanded')).toBe('false');
    await userEvent.click(await screen.findByRole('button', { name: 'Try it first' }));
    expect((await screen.findByLabelText('Device claim')).getAttribute('aria-invalid')).toBe('true');
    expect(toggle.getAttribute('aria-expanded')).toBe('true');
  });
  it('asks nothing while it is incomplete', async () => {
    openPage('/services/new?name=my-service', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Create' }));
    expect(screen.getByText('A service needs a name, a model folder and an image.')).toBeDefined();
    expect(sent('POST /func/services')).toHaveLength(0);
  });
  it('puts the problem of a trial at its field until that is changed', async () => {
    server.on('POST /func/services/_/try', () => ({
      status: 400,
      body: { title: 'A custom server needs a command.', data: { startup_command: 'missing' } },
    }));
    openPage(address, server);
    const field = await screen.findByRole('textbox', { name: 'Command' });
    await userEvent.click(await screen.findByRole('button', { name: 'Try it first' }));
    await expect.poll(() => field.getAttribute('aria-invalid')).toBe('true');
    await userEvent.type(field, 'x');
    await expect.poll(() => field.getAttribute('aria-invalid')).not.toBe('true');
  });
  it('follows a trial to its end', async () => {
    const sources: EventTarget[] = [];
    class Source extends EventTarget {
      static readonly CLOSED = 2;
      readyState = 1;
      constructor(readonly url: string) {
        super();
        if (url.includes('background-task')) sources.push(this);
      }
      close(): void {
        this.readyState = 2;
      }
    }
    vi.stubGlobal('EventSource', Source);
    server.on('POST /func/services/_/try', () => ({ body: { task_id: 't1' } }));
    openPage(address, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Try it first' }));
    expect(await screen.findByText('The trial runs')).toBeDefined();
    await expect.poll(() => sources.length).toBe(1);
    sources[0]?.dispatchEvent(
      new MessageEvent('bgtask_updated', { data: '{"current_progress":1,"total_progress":3,"message":"it runs"}' }),
    );
    expect(await screen.findByText('Step 2 of 3')).toBeDefined();
    sources[0]?.dispatchEvent(new MessageEvent('bgtask_failed', { data: '{"message":"no answer"}' }));
    expect(await screen.findByText('The model cannot be served so')).toBeDefined();
    expect(screen.getByText('no answer')).toBeDefined();
  });
});
