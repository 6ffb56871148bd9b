import { screen, waitFor } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { describe, expect, it, vi } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

const slots = {
  cpu: {
    slot_name: 'cpu',
    slot_type: 'count',
    description: '',
    human_readable_name: 'CPU',
    display_unit: '',
    number_format: { binary: false, round_length: 0 },
    display_icon: '',
  },
};
const explanation = {
  verdict: 'waits',
  reason: 'insufficient-resource',
  remedy: 'others',
  message: 'needs 4 cpu on one node; most free is 2 on i-1',
  count: 1,
  placed: 0,
  agents: { total: 1, startable: 0, names: [], excluded: [], largest_free: { cpu: '2' } },
  holders: { count: 0, visible: [] },
  limits: [],
  nearest: [{ resources: { cpu: '2' }, cluster_size: 1 }],
};

function serverWith(told: (body: Record<string, unknown>) => unknown): FakeServer {
  const server = new FakeServer();
  server.graphql('images', () => ({
    images: [
      {
        id: '1',
        name: 'python',
        tag: '3',
        registry: '',
        aliases: ['python'],
        architecture: 'x86_64',
        resource_limits: [],
      },
    ],
  }));
  server.on('GET /func/scaling-groups', () => ({ body: { scaling_groups: [{ name: 'default' }] } }));
  server.on('GET /func/config/resource-slots/details', () => ({ body: slots }));
  server.on('GET /func/folders', () => ({ body: [{ id: '1', name: 'data' }] }));
  server.on('POST /func/resource/check-presets', () => ({
    body: {
      keypair_remaining: { cpu: '3' },
      group_remaining: { cpu: 'Infinity' },
      domain_remaining: { cpu: 'Infinity' },
      scaling_groups: { default: { using: {}, remaining: { cpu: '8' } } },
      presets: [],
    },
  }));
  server.on('POST /func/session/_/explain', (body) => ({ body: told(body) }));
  return server;
}

describe('the page of a launch', () => {
  it('shows the verdict, the bounds of each quantity, and takes what would start', async () => {
    const server = serverWith((body) => {
      const wanted = (body.config as { resources: Record<string, string> }).resources.cpu;
      return wanted === '4' ? explanation : { ...explanation, verdict: 'now', remedy: null, nearest: [] };
    });
    const { router } = openPage('/sessions/new?image=python&r=cpu%3D4', server);
    expect(await screen.findByText(explanation.message)).toBeTruthy();
    expect((await screen.findByLabelText<HTMLInputElement>('CPU')).value).toBe('4');
    await waitFor(() => expect(screen.getByText('More than any agent has free')).toBeTruthy());
    expect(screen.getByText(/Your limit/).textContent).toContain('3');
    expect(screen.getByRole('button', { name: 'Put into the queue' })).toBeTruthy();
    await userEvent.click(screen.getByRole('button', { name: 'Take' }));
    expect(await screen.findByText('Starts now')).toBeTruthy();
    expect(router.state.location.search).toMatchObject({ r: 'cpu=2' });
    expect(screen.getByText(/backend.ai start -r cpu=2/)).toBeTruthy();
  });

  it('launches once with a token, and goes to the session', async () => {
    const server = serverWith(() => ({ ...explanation, verdict: 'now' }));
    let token: string | null = null;
    server.on('POST /func/session', (_, request) => {
      token = request.headers.get('X-BackendAI-Client-Token');
      return { status: 201, body: { sessionId: 'abc', name: 'made-up' } };
    });
    const { router } = openPage('/sessions/new?image=python', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Launch' }));
    await waitFor(() => expect(router.state.location.pathname).toBe('/sessions/abc'));
    expect(token).toMatch(/-0$/);
    expect(server.requests.filter(({ key }) => key === 'POST /func/session')).toHaveLength(1);
  });

  it('has no variables and no script in its address, and keeps them while the page is open', async () => {
    const server = serverWith(() => ({ ...explanation, verdict: 'now' }));
    const sent: Record<string, unknown>[] = [];
    server.on('POST /func/session', (body) => {
      sent.push(body);
      return { status: 201, body: { sessionId: 'abc', name: 'a' } };
    });
    const { router, client } = openPage('/sessions/new?image=python&env=OLD%3D1&bootstrap=old', server);
    const field = await screen.findByLabelText<HTMLTextAreaElement>('Environment variables');
    expect(field.value).toBe('');
    await waitFor(() => expect(router.state.location.href).not.toContain('OLD'));
    await userEvent.type(field, 'KEY=secret');
    expect(field.value).toBe('KEY=secret');
    await userEvent.click(screen.getByRole('button', { name: 'More options' }));
    await userEvent.click(screen.getByLabelText('First script'));
    await userEvent.paste('echo secret');
    await userEvent.click(screen.getByLabelText('Tag'));
    await userEvent.paste('mine');
    await waitFor(() => expect(router.state.location.search).toMatchObject({ image: 'python', tag: 'mine' }));
    expect(JSON.stringify(router.state.location)).not.toContain('secret');
    expect(JSON.stringify({ ...localStorage, ...sessionStorage })).not.toContain('secret');
    await userEvent.click(await screen.findByRole('button', { name: 'Launch' }));
    await waitFor(() => expect(router.state.location.pathname).toBe('/sessions/abc'));
    expect(sent).toMatchObject([{ bootstrap_script: 'echo secret', config: { environ: { KEY: 'secret' } } }]);
    // Another launch begins empty; the way back leads to what was typed, and after a sign-out to nothing.
    await router.navigate({ to: '/sessions/new' });
    expect((await screen.findByLabelText<HTMLTextAreaElement>('Environment variables')).value).toBe('');
    router.history.go(-2);
    await waitFor(() =>
      expect(screen.getByLabelText<HTMLTextAreaElement>('Environment variables').value).toBe('KEY=secret'),
    );
    expect(screen.queryByText(/because the page was loaded anew/)).toBeNull();
    await router.navigate({ to: '/sessions' });
    client.removeQueries({ queryKey: ['unlisted'] });
    router.history.back();
    expect(await screen.findByText(/because the page was loaded anew/)).toBeTruthy();
    expect(screen.getByLabelText<HTMLTextAreaElement>('Environment variables').value).toBe('');
  });

  it('enqueues an array once with a token, and goes to the arrays', async () => {
    const server = serverWith(() => ({ ...explanation, verdict: 'now' }));
    let token: string | null = null;
    server.on('POST /func/arrays', (_, request) => {
      token = request.headers.get('X-BackendAI-Client-Token');
      return { status: 201, body: { id: 'a1', name: 'sweep' } };
    });
    server.on('GET /func/arrays', () => ({ body: { items: [], totalCount: 0 } }));
    const { router } = openPage('/sessions/new?image=python&type=batch&command=job&array=oops', server);
    expect(await screen.findByText(/Not such as 1-1000/)).toBeTruthy();
    await userEvent.click(screen.getByRole('button', { name: 'Put into the queue' }));
    expect(server.requests.some(({ key }) => key === 'POST /func/arrays')).toBe(false);
    const field = screen.getByLabelText<HTMLInputElement>('Array');
    await userEvent.clear(field);
    await userEvent.click(field);
    await userEvent.paste('1-9%2');
    await waitFor(() => expect(field.value).toBe('1-9%2'));
    await userEvent.click(screen.getByRole('button', { name: 'Put into the queue' }));
    await waitFor(() => expect(router.state.location.pathname).toBe('/sessions/arrays'));
    expect(token).toMatch(/^[0-9a-f-]{36}$/);
    expect(server.requests.filter(({ key }) => key === 'POST /func/arrays').map(({ body }) => body)).toMatchObject([
      { indices: '1-9%2', session: { name: null, type: 'batch', startupCommand: 'job' } },
    ]);
  });

  it('asks for nothing before there is an image', async () => {
    const server = serverWith(() => explanation);
    openPage('/sessions/new', server);
    expect(await screen.findByText(/Choose an image/)).toBeTruthy();
    await userEvent.click(screen.getByRole('button', { name: 'Launch' }));
    expect(server.requests.some(({ key }) => key.includes('explain') || key === 'POST /func/session')).toBe(false);
  });

  it('says which choices could not be fetched', async () => {
    const server = serverWith(() => explanation);
    const refuse = (title: string) => () => ({ status: 409, body: { title, type: 'x' } });
    server.on('GET /func/folders', refuse('no folders'));
    server.on('GET /func/scaling-groups', refuse('no groups'));
    server.on('POST /func/resource/check-presets', refuse('no quotas'));
    server.on('gql images', refuse('no images'));
    openPage('/sessions/new?image=python&project=default&group=default', server);
    for (const title of ['no images', 'no folders', 'no groups', 'no quotas'])
      expect(await screen.findByText(title)).toBeTruthy();
    expect(screen.getAllByRole('button', { name: 'Try again' })).toHaveLength(4);
  });

  it('says so when a launch fails, and leaves no promise behind', async () => {
    const server = serverWith(() => ({ ...explanation, verdict: 'now' }));
    server.on('POST /func/session', () => ({ status: 409, body: { title: 'The name is taken', type: 'x' } }));
    const rejected = vi.fn();
    process.on('unhandledRejection', rejected);
    const { router } = openPage('/sessions/new?image=python', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Launch' }));
    expect(await screen.findByText('The name is taken')).toBeTruthy();
    expect(router.state.location.pathname).toBe('/sessions/new');
    process.off('unhandledRejection', rejected);
    expect(rejected).not.toHaveBeenCalled();
  });

  it('shows nine presets, says how many there are, and shows all on demand', async () => {
    const server = serverWith(() => ({ ...explanation, verdict: 'now' }));
    server.on('POST /func/resource/check-presets', () => ({
      body: {
        keypair_remaining: {},
        group_remaining: {},
        domain_remaining: {},
        scaling_groups: {},
        presets: Array.from({ length: 11 }, (_, place) => ({
          name: `preset-${place}`,
          resource_slots: { cpu: String(place + 1) },
          shared_memory: null,
          device_requests: [],
          allocatable: place === 10,
        })),
      },
    }));
    openPage('/sessions/new?image=python', server);
    expect(await screen.findByText(/9 of 11 presets/)).toBeTruthy();
    expect(screen.getByText('preset-10')).toBeTruthy();
    expect(screen.queryByText('preset-9')).toBeNull();
    await userEvent.click(screen.getByRole('button', { name: 'Show all' }));
    expect(await screen.findByText('preset-9')).toBeTruthy();
  });

  it('takes the devices and shared memory of a preset, also for its verdict', async () => {
    const server = serverWith(() => ({ ...explanation, verdict: 'now' }));
    server.on('POST /func/resource/check-presets', () => ({
      body: {
        keypair_remaining: {},
        group_remaining: {},
        domain_remaining: {},
        scaling_groups: {},
        presets: [
          {
            name: 'large-gpu',
            resource_slots: { cpu: '1' },
            shared_memory: 2 ** 26,
            device_requests: ['memory >= 40g'],
            allocatable: true,
          },
        ],
      },
    }));
    const { router } = openPage('/sessions/new?image=python', server);
    await userEvent.click(await screen.findByText('large-gpu'));
    await waitFor(() =>
      expect(router.state.location.search).toMatchObject({ r: 'cpu=1', shmem: '64m', devices: 'memory >= 40g' }),
    );
    const config = { resources: { cpu: '1' }, resource_opts: { shmem: '64m' }, device_requests: ['memory >= 40g'] };
    expect(server.requests.filter(({ key }) => key.endsWith('explain')).map(({ body }) => body)).toContainEqual(
      expect.objectContaining({ config: expect.objectContaining(config) }),
    );
  });

  it('shows a refused option at its field, among options that are hidden else', async () => {
    const server = serverWith(() => explanation);
    server.on('POST /func/session/_/explain', () => ({
      status: 404,
      body: { title: 'Not found', type: 'x', detail: 'There is no claim nope.', data: { 'config.claim': 'unknown' } },
    }));
    openPage('/sessions/new?image=python', server);
    const toggle = await screen.findByRole('button', { name: 'More options' });
    await waitFor(() => expect(toggle.getAttribute('aria-expanded')).toBe('true'));
    const field = screen.getByLabelText('Device claim');
    expect(field.getAttribute('aria-invalid')).toBe('true');
    expect(screen.queryByLabelText('Owner')).toBeNull();
  });

  it('lists the properties and options that the cluster has, and adds one by a click', async () => {
    const server = serverWith(() => explanation);
    const variant = { property: 'mock::model::X', device_names: ['mock'], devices: { default: 2 } };
    server.on('GET /func/resource/variant-properties', () => ({ body: { variant_properties: [variant] } }));
    server.on('GET /func/resource/plugin-options', () => ({ body: { plugin_options: {} } }));
    const { router } = openPage('/sessions/new?image=python&variants=a%3A%3Ab%3A%3Ac', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Properties of the devices here' }));
    await userEvent.click(await screen.findByRole('button', { name: 'mock::model::X' }));
    await waitFor(() => expect(router.state.location.search).toMatchObject({ variants: 'a::b::c\nmock::model::X' }));
    await userEvent.click(screen.getByRole('button', { name: 'Options of the plugins here' }));
    expect(await screen.findByText('There are none.')).toBeTruthy();
  });

  it('says what is wrong with a request', async () => {
    const server = serverWith(() => explanation);
    server.on('POST /func/session/_/explain', () => ({
      status: 400,
      body: { title: 'Malformed', type: 'x', msg: 'cpu: malformed' },
    }));
    openPage('/sessions/new?image=python&r=cpu%3D4', server);
    expect(await screen.findByText('Malformed')).toBeTruthy();
  });
});
