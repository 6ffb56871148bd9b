import { screen, waitFor, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { entriesOf, isSecret, pathOf } from './keys';
import { countersOf } from './rules';

describe('keys of the shared configuration', () => {
  it('are values, folders, or both', () => {
    const tree = { ip: '10.0.0.1', plugins: { mock: { mode: 'fractional', '': 'on' } }, '': 'own' };
    expect(entriesOf('config', tree)).toEqual([
      { name: '', key: 'config', value: 'own', below: 0 },
      { name: 'ip', key: 'config/ip', value: '10.0.0.1', below: 0 },
      { name: 'plugins', key: 'config/plugins', value: null, below: 2 },
    ]);
    expect(entriesOf('config/plugins', tree.plugins)[0]).toEqual({
      name: 'mock',
      key: 'config/plugins/mock',
      value: 'on',
      below: 1,
    });
    expect(entriesOf('', 'a value')).toEqual([]);
    expect(entriesOf('', null)).toEqual([]);
  });
  it('have a path', () => {
    expect(pathOf('a/b')).toEqual([
      { name: 'a', key: 'a' },
      { name: 'b', key: 'a/b' },
    ]);
    expect(pathOf('')).toEqual([]);
  });
  it('are secrets by their last part', () => {
    expect(['x/password', 'a/auth_token', 'token/name', 'x/ip'].map(isSecret)).toEqual([true, true, false, false]);
  });
});

it('counters of a storage host are those that it has', () => {
  expect(countersOf('{"iops_read": 3, "io_bytes_write": 1024, "other": 1, "iops_write": null}')).toEqual([
    { name: 'iops_read', value: 3 },
    { name: 'io_bytes_write', value: 1024 },
  ]);
  expect(countersOf(null)).toEqual([]);
});

describe('pages', () => {
  let server: FakeServer;
  let values: Record<string, unknown>;
  let asked: Record<string, unknown>[];
  beforeEach(() => {
    asked = [];
    values = { docker: { password: 'hunter2' }, ip: '10.0.0.1' };
    server = new FakeServer();
    server.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'AKIATEST', role: 'superadmin', status: 'active' } },
    }));
    server.on('POST /func/config/get', ({ key }) => ({
      body: { result: key === '' ? values : (values[String(key)] ?? {}) },
    }));
    server.on('POST /func/config/set', (body) => {
      asked.push(body);
      values = { ...values, [String(body.key)]: body.value };
      return { body: { result: 'ok' } };
    });
    server.on('POST /func/config/delete', (body) => {
      asked.push(body);
      const { [String(body.key)]: _, ...others } = values;
      values = others;
      return { body: { result: 'ok' } };
    });
  });

  it('of the shared configuration covers secrets, and goes down and up by links', async () => {
    const { router } = openPage('/system/configuration', server);
    await userEvent.click(await screen.findByRole('link', { name: 'docker/' }));
    await userEvent.click(await screen.findByRole('button', { name: 'Show the value of docker/password' }));
    expect(screen.getByText('hunter2')).toBeDefined();
    expect(router.state.location.search).toEqual({ at: 'docker' });
    await userEvent.click(screen.getByRole('link', { name: 'All keys' }));
    expect(await screen.findByText('10.0.0.1')).toBeDefined();
    expect(screen.queryByText('hunter2')).toBeNull();
  });

  it('of the shared configuration sets a key, and refuses a name that is none', async () => {
    openPage('/system/configuration', server);
    await userEvent.click(await screen.findByRole('button', { name: 'New key' }));
    const dialog = await screen.findByRole('dialog');
    await userEvent.type(within(dialog).getByLabelText('Key'), 'config/');
    await userEvent.type(within(dialog).getByLabelText('Value'), 'on');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    expect(within(dialog).getByText('Name a key that does not end with a slash.')).toBeDefined();
    expect(asked).toEqual([]);
    await userEvent.type(within(dialog).getByLabelText('Key'), 'mode');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await waitFor(() => expect(asked).toEqual([{ key: 'config/mode', value: 'on' }]));
  });

  it('of the shared configuration removes all below a key after the key was typed', async () => {
    openPage('/system/configuration', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Remove docker' }));
    const dialog = await screen.findByRole('dialog');
    expect(within(dialog).getByText('1 value is lost. This cannot be undone.')).toBeDefined();
    expect(within(dialog).getByRole('button', { name: 'Remove' })).toHaveProperty('disabled', true);
    await userEvent.type(within(dialog).getByLabelText('Type docker to confirm'), 'docker');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Remove' }));
    await waitFor(() => expect(screen.queryByRole('link', { name: 'docker/' })).toBeNull());
    expect(asked).toEqual([{ key: 'docker', prefix: true }]);
  });

  it('of the installation recounts the slots in use', async () => {
    let drift = {};
    server.on('POST /func/resource/recalculate-usage', () => ({ body: { drift, orphans: [] } }));
    openPage('/system', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Recount' }));
    expect(await screen.findByText('The records are right')).toBeDefined();
    drift = { 'i-1': { recorded: { cpu: '2' }, counted: { cpu: '1' } } };
    await userEvent.click(screen.getByRole('button', { name: 'Recount' }));
    const table = await screen.findByRole('table', { name: 'Slots in use' });
    expect(within(table).getByRole('link', { name: 'i-1' })).toBeDefined();
  });

  describe('of registries', () => {
    let images: Record<string, unknown>[];
    beforeEach(() => {
      const image = {
        name: 'python',
        tag: '3',
        registry: 'r.io',
        architecture: 'x86_64',
        aliases: ['py'],
        installed: true,
        installed_agents: ['a'],
        resource_limits: [],
      };
      images = [image];
      server.graphql('images', () => ({ images }));
      server.graphql('container_registries', () => ({
        container_registries: [{ hostname: 'r.io', config: { url: 'https://r.io', type: 'docker', project: [] } }],
      }));
      for (const name of ['preload_image', 'unload_image', 'forget_image', 'clear_images']) {
        server.graphql(name, (variables) => {
          asked.push({ name, ...variables });
          if (variables.agents === 'none') return { [name]: { ok: false, msg: "'none' names no agent." } };
          if (name === 'forget_image' || name === 'clear_images') images = [];
          return { [name]: { ok: true, msg: '', task_id: 't' } };
        });
      }
    });
    const open = async (act: string) => {
      openPage('/registries', server);
      await userEvent.click(await screen.findByRole('button', { name: 'Act on r.io/python:3 (x86_64)' }));
      await userEvent.click(await screen.findByRole('menuitem', { name: act }));
      return screen.findByRole('dialog');
    };

    it('an image is fetched on chosen agents, whose refusal is shown', async () => {
      const dialog = await open('Fetch on agents');
      const agents = within(dialog).getByLabelText('Agents');
      await userEvent.clear(agents);
      await userEvent.type(agents, 'none');
      await userEvent.click(within(dialog).getByRole('button', { name: 'Fetch on agents' }));
      expect(await within(dialog).findByText(/names no agent/)).toBeDefined();
      await userEvent.clear(agents);
      await userEvent.type(agents, 'group:gpu');
      await userEvent.click(within(dialog).getByRole('button', { name: 'Fetch on agents' }));
      expect(await screen.findByText('Agents work on the image')).toBeDefined();
      expect(asked.at(-1)).toEqual({
        name: 'preload_image',
        reference: 'r.io/python:3',
        architecture: 'x86_64',
        agents: 'group:gpu',
      });
    });

    it('an image is removed from agents', async () => {
      const dialog = await open('Remove from agents');
      await userEvent.click(within(dialog).getByRole('button', { name: 'Remove from agents' }));
      await waitFor(() => expect(asked.at(-1)).toMatchObject({ name: 'unload_image', agents: '*' }));
    });

    it('an image is forgotten only after its short names are told and its own is typed', async () => {
      const dialog = await open('Forget');
      expect(within(dialog).getByText(/do not come back with a scan: py/)).toBeDefined();
      await userEvent.type(within(dialog).getByLabelText('Type r.io/python:3 to confirm'), 'r.io/python:3');
      await userEvent.click(within(dialog).getByRole('button', { name: 'Forget' }));
      expect(await screen.findByText('There are no images')).toBeDefined();
    });

    it('all images of a registry are forgotten after its name is typed', async () => {
      openPage('/registries', server);
      await userEvent.click(await screen.findByRole('button', { name: 'Forget images: r.io' }));
      const dialog = await screen.findByRole('dialog');
      expect(await within(dialog).findByText(/^1 image is not known/)).toBeDefined();
      await userEvent.type(within(dialog).getByLabelText('Type r.io to confirm'), 'r.io');
      await userEvent.click(within(dialog).getByRole('button', { name: 'Forget images' }));
      await waitFor(() => expect(asked).toEqual([{ name: 'clear_images', registry: 'r.io' }]));
    });

    it('an image of no registry that no agent removes has no acts', async () => {
      images = [{ ...images[0], registry: '', installed: false }];
      openPage('/registries', server);
      expect(await screen.findByText('python:3')).toBeDefined();
      expect(screen.queryByRole('button', { name: /^Act on/ })).toBeNull();
      expect(screen.getByText('backend.ai image import SOURCE NAME')).toBeDefined();
    });
  });
});
